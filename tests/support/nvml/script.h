/* What the library is told, and what every call passes: trace, sleep, refusal, handle check. */
struct Device { unsigned magic; int index, mig; };
struct Sample { unsigned magic; int index, gi; unsigned long long serial; };
struct EventSet { unsigned magic; int registered[MAX_DEVICES]; long seen; };
enum { DEVICE_MAGIC = 0x6e76646d, SAMPLE_MAGIC = 0x6e76736d, SET_MAGIC = 0x6e76736e };

typedef struct { char kind[8], call[64]; int device, code; double seconds; } Rule;
typedef struct { char name[32]; int device; double number; } Setting;
typedef struct { long seq; int device; unsigned long long type, data; unsigned gi, ci; } Event;

static pthread_mutex_t control_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t driver_lock = PTHREAD_MUTEX_INITIALIZER;
static struct Device devices[MAX_DEVICES][MAX_MIG + 1];
static int profile = H100, device_count = 8, init_code, init_count, samples, sets;
static int control_device = -1;
static unsigned long long sample_serial;
static double elapsed;
static Rule rules[MAX_RULES];
static Setting settings[MAX_RULES];
static Event events[MAX_RULES];
static int rule_count, setting_count, event_count;
static char trace_path[512];
static struct stat seen_stat;

static const int PCI_BUS[MAX_DEVICES] = {0x53, 0x64, 0x75, 0x86, 0x97, 0xa8, 0xb9, 0xca,
                                         0xd0, 0xd1, 0xd2, 0xd3, 0xd4, 0xd5, 0xd6, 0xd7};
static const unsigned MIG_GI[MAX_MIG] = {2, 3, 9, 10};
static const char *MIG_PROFILE[MAX_MIG] = {"3g.40gb", "2g.20gb", "1g.10gb", "1g.10gb"};
static const unsigned long long MIG_TOTAL[MAX_MIG] = {40448, 20096, 9984, 9984};
static const unsigned long long MIG_USED[MAX_MIG] = {11091, 17, 9, 9};

static int device_of(const char *text) { return text[0] == '*' ? -1 : atoi(text); }

static void read_control(void) {
    const char *path = getenv("FAKE_NVML_CONTROL");
    struct stat now;
    char line[1024], word[16], a[64], b[64];
    FILE *file;

    if (!path || stat(path, &now)) return;
    if (now.st_ino == seen_stat.st_ino && now.st_size == seen_stat.st_size &&
        now.st_mtim.tv_sec == seen_stat.st_mtim.tv_sec &&
        now.st_mtim.tv_nsec == seen_stat.st_mtim.tv_nsec)
        return;
    if (!(file = fopen(path, "r"))) return;
    seen_stat = now;
    rule_count = setting_count = event_count = init_code = 0;
    elapsed = 0;
    device_count = -1;
    trace_path[0] = 0;
    while (fgets(line, sizeof line, file)) {
        double number = 0;
        if (sscanf(line, "%15s %63s", word, a) < 2 || word[0] == '#') continue;
        if (!strcmp(word, "profile"))
            profile = !strcmp(a, "a100") ? A100 : !strcmp(a, "b200") ? B200
                      : !strcmp(a, "h100-mig") ? MIG : H100;
        else if (!strcmp(word, "count")) device_count = atoi(a);
        else if (!strcmp(word, "init")) init_code = atoi(a);
        else if (!strcmp(word, "time")) elapsed = atof(a);
        else if (!strcmp(word, "trace")) sscanf(line, "%*s %511s", trace_path);
        else if (!strcmp(word, "process") && event_count < MAX_RULES) {
            /* An event of no type: sequence and data are process id and bytes. */
            Event *e = &events[event_count++];
            memset(e, 0, sizeof *e);
            e->gi = e->ci = 0xffffffffu;
            e->device = device_of(a);
            sscanf(line, "%*s %*s %ld %llu %u %u", &e->seq, &e->data, &e->gi, &e->ci);
        } else if (!strcmp(word, "event") && event_count < MAX_RULES) {
            Event *e = &events[event_count++];
            char where[64];
            memset(e, 0, sizeof *e);
            e->gi = e->ci = 0xffffffffu;
            sscanf(line, "%*s %ld %63s %llu %llu %u %u", &e->seq, where, &e->type, &e->data,
                   &e->gi, &e->ci);
            e->device = device_of(where);
        } else if (sscanf(line, "%*s %*s %63s %lf", b, &number) == 2) {
            if (!strcmp(word, "set") && setting_count < MAX_RULES) {
                Setting *s = &settings[setting_count++];
                s->device = device_of(a);
                snprintf(s->name, sizeof s->name, "%.31s", b);
                s->number = number;
            } else if (rule_count < MAX_RULES) {
                Rule *r = &rules[rule_count++];
                snprintf(r->kind, sizeof r->kind, "%.7s", word);
                snprintf(r->call, sizeof r->call, "%s", b);
                r->device = device_of(a);
                r->code = (int)number;
                r->seconds = number;
            }
        }
    }
    fclose(file);
    if (device_count < 0) device_count = profile == MIG ? 1 : 8;
    if (device_count > MAX_DEVICES) device_count = MAX_DEVICES;
}

/* The newest matching rule of one kind; device -2 stands for calls on no device. */
static int find_rule(const char *kind, int device, const char *call, Rule *found) {
    int hit = 0;
    pthread_mutex_lock(&control_lock);
    read_control();
    for (int i = 0; i < rule_count; i++) {
        Rule *r = &rules[i];
        if (!strcmp(r->kind, kind) && (r->device == device || (r->device < 0 && device >= 0)) &&
            (r->call[0] == '*' || !strcmp(r->call, call))) {
            *found = *r;
            hit = 1;
        }
    }
    pthread_mutex_unlock(&control_lock);
    return hit;
}

/* One value: what the script sets, else the given default. */
static double setting(int device, const char *name, double otherwise) {
    pthread_mutex_lock(&control_lock);
    for (int i = 0; i < setting_count; i++)
        if ((settings[i].device < 0 || settings[i].device == device) &&
            !strcmp(settings[i].name, name))
            otherwise = settings[i].number;
    pthread_mutex_unlock(&control_lock);
    return otherwise;
}

static double monotonic(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

static void sleep_while_told(const char *kind, int device, const char *call) {
    double start = monotonic();
    Rule rule;
    while (find_rule(kind, device, call, &rule) && monotonic() - start < rule.seconds)
        usleep(2000);
}

static void trace(const char *mark, int device, const char *call) {
    char line[256];
    int file, length;
    if (!trace_path[0]) return;
    file = open(trace_path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    if (file < 0) return;
    length = snprintf(line, sizeof line, "%s%s %d\n", mark, call, device);
    if (write(file, line, (size_t)length) != length) { /* a trace that cannot be written is none */ }
    close(file);
}

static int enter(int device, const char *call) {
    Rule rule;
    pthread_mutex_lock(&control_lock);
    read_control();
    pthread_mutex_unlock(&control_lock);
    trace("", device, call);
    pthread_mutex_lock(&driver_lock);
    sleep_while_told("hold", device, call);
    pthread_mutex_unlock(&driver_lock);
    sleep_while_told("block", device, call);
    if (init_count <= 0) return UNINITIALIZED;
    return find_rule("fail", device, call, &rule) ? rule.code : OK;
}

static int good(const struct Device *device, const char *call) {
    const char *at = (const char *)device, *first = (const char *)devices;
    if (at >= first && at < first + sizeof devices && device->magic == DEVICE_MAGIC) return 1;
    trace("BAD ", -2, call);
    return 0;
}

#define ENTER(device)                                     \
    do {                                                  \
        int code_;                                        \
        if (!good(device, __func__)) return INVALID;      \
        code_ = enter((device)->index, __func__);         \
        if (code_) return code_;                          \
    } while (0)
#define ENTER_NONE()                                      \
    do {                                                  \
        int code_ = enter(-2, __func__);                  \
        if (code_) return code_;                          \
    } while (0)
