/* The library, its devices and their single values. */
int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    pthread_mutex_lock(&control_lock);
    read_control();
    for (int i = 0; i < MAX_DEVICES; i++)
        for (int m = 0; m <= MAX_MIG; m++)
            devices[i][m] = (struct Device){DEVICE_MAGIC, i, m - 1};
    if (!init_code && !init_count++) {
        /* As the real one keeps /dev/nvidiactl open from its first initialisation on. */
        const char *control = getenv("FAKE_NVML_CONTROL");
        char path[600];
        snprintf(path, sizeof path, "%s.nvidiactl", control ? control : "");
        control_device = control ? open(path, O_RDONLY | O_CREAT | O_CLOEXEC, 0644) : -1;
    }
    pthread_mutex_unlock(&control_lock);
    trace("", -2, __func__);
    sleep_while_told("block", -2, __func__);
    return init_code;
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void) {
    trace("", -2, __func__);
    if (init_count <= 0) return UNINITIALIZED;
    if (!--init_count && control_device >= 0) {
        close(control_device);
        control_device = -1;
    }
    return OK;
}

const char *nvmlErrorString(int code) { return code == OK ? "Success" : "an error"; }

static int give(char *out, unsigned length, const char *text) {
    if (strlen(text) >= length) return SMALL;
    strcpy(out, text);
    return OK;
}

int nvmlSystemGetDriverVersion(char *version, unsigned length) {
    ENTER_NONE();
    return give(version, length, profile == A100 ? "535.183.06" : "590.48.01");
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    ENTER_NONE();
    *count = (unsigned)device_count;
    return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct Device **device) {
    int code;
    if (index >= (unsigned)device_count) return INVALID;
    if ((code = enter((int)index, __func__))) return code;
    *device = &devices[index][0];
    return OK;
}

int nvmlDeviceGetIndex(struct Device *device, unsigned *index) {
    ENTER(device);
    *index = (unsigned)device->index;
    return OK;
}

static void uuid_of(const struct Device *device, char *text) {
    if (device->mig < 0)
        sprintf(text, "GPU-%08x-0000-4000-8000-%012x", device->index, 0xa0 + device->index);
    else
        sprintf(text, "MIG-%08x-0000-5000-8000-%012x", device->mig, 0xa0 + device->index);
}

int nvmlDeviceGetUUID(struct Device *device, char *uuid, unsigned length) {
    char text[96];
    ENTER(device);
    uuid_of(device, text);
    return give(uuid, length, text);
}

int nvmlDeviceGetHandleByUUID(const char *uuid, struct Device **device) {
    char text[96];
    for (int i = 0; i < device_count; i++) {
        uuid_of(&devices[i][0], text);
        if (strcmp(text, uuid)) continue;
        int code = enter(i, __func__);
        if (!code) *device = &devices[i][0];
        return code;
    }
    return NOT_FOUND;
}

static void bus_id_of(const struct Device *device, char *text) {
    sprintf(text, "%08X:%02X:00.0", 0, PCI_BUS[device->index]);
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, struct Device **device) {
    char text[32];
    for (int i = 0; i < device_count; i++) {
        bus_id_of(&devices[i][0], text);
        if (strcasecmp(text, bus_id)) continue;
        int code = enter(i, __func__);
        if (!code) *device = &devices[i][0];
        return code;
    }
    return NOT_FOUND;
}

int nvmlDeviceGetPciInfo_v3(struct Device *device, PciInfo *info) {
    ENTER(device);
    memset(info, 0, sizeof *info);
    bus_id_of(device, info->busId);
    sprintf(info->busIdLegacy, "%04X:%02X:00.0", 0, PCI_BUS[device->index]);
    info->bus = (unsigned)PCI_BUS[device->index];
    info->pciDeviceId = profile == A100 ? 0x20b010deu : profile == B200 ? 0x290110deu : 0x233010deu;
    return OK;
}

int nvmlDeviceGetName(struct Device *device, char *name, unsigned length) {
    char text[96];
    ENTER(device);
    if (device->mig >= 0)
        snprintf(text, sizeof text, "NVIDIA H100 80GB HBM3 MIG %s", MIG_PROFILE[device->mig]);
    else
        snprintf(text, sizeof text, "%s", profile == A100 ? "NVIDIA A100-SXM4-40GB"
                 : profile == B200 ? "NVIDIA B200" : "NVIDIA H100 80GB HBM3");
    return give(name, length, text);
}

int nvmlDeviceGetSerial(struct Device *device, char *serial, unsigned length) {
    char text[32];
    ENTER(device);
    sprintf(text, "165000000%04d", device->index);
    return give(serial, length, text);
}

int nvmlDeviceGetUtilizationRates(struct Device *device, Utilization *out) {
    ENTER(device);
    if (profile == MIG && setting(device->index, "utilization", -1) < 0) return NOT_SUPPORTED;
    out->gpu = (unsigned)setting(device->index, "utilization", 97);
    out->memory = (unsigned)setting(device->index, "memory_utilization", 41);
    return OK;
}

static Memory2 memory_of(const struct Device *device) {
    const unsigned long long mib = 1ull << 20;
    Memory2 m = {0};
    if (device->mig >= 0) {
        m.total = MIG_TOTAL[device->mig] * mib;
        m.used = MIG_USED[device->mig] * mib;
    } else {
        m.total = (profile == A100 ? 40960ull : profile == B200 ? 183359ull : 81559ull) * mib;
        m.reserved = 479 * mib;
        m.used = (unsigned long long)setting(device->index, "memory_used_mib", 11125) * mib;
    }
    m.free = m.total - m.reserved - m.used;
    return m;
}

int nvmlDeviceGetMemoryInfo(struct Device *device, Memory *out) {
    Memory2 m;
    ENTER(device);
    m = memory_of(device);
    *out = (Memory){m.total, m.free, m.used + m.reserved};
    return OK;
}

int nvmlDeviceGetMemoryInfo_v2(struct Device *device, Memory2 *out) {
    unsigned version;
    ENTER(device);
    version = out->version;
    if (version != ((2u << 24) | sizeof *out)) return VERSION;
    *out = memory_of(device);
    out->version = version;
    return OK;
}

int nvmlDeviceGetClockInfo(struct Device *device, unsigned type, unsigned *clock) {
    static const unsigned mhz[] = {1980, 1980, 2619, 1545};
    ENTER(device);
    if (type > 3) return INVALID;
    *clock = (unsigned)setting(device->index, "clock", mhz[type]);
    return OK;
}

int nvmlDeviceGetMaxClockInfo(struct Device *device, unsigned type, unsigned *clock) {
    static const unsigned mhz[] = {1980, 1980, 2619, 1545};
    ENTER(device);
    if (type > 3) return INVALID;
    *clock = mhz[type];
    return OK;
}

int nvmlDeviceGetTemperature(struct Device *device, unsigned sensor, unsigned *out) {
    ENTER(device);
    if (sensor) return INVALID;
    *out = (unsigned)setting(device->index, "temperature", 53 + device->index);
    return OK;
}

int nvmlDeviceGetTemperatureV(struct Device *device, Temperature *out) {
    ENTER(device);
    if (out->version != ((1u << 24) | sizeof *out)) return VERSION;
    if (out->sensorType) return INVALID;
    out->temperature = (int)setting(device->index, "temperature", 53 + device->index);
    return OK;
}

int nvmlDeviceGetTemperatureThreshold(struct Device *device, unsigned kind, unsigned *out) {
    static const unsigned limit[] = {95, 92, 95, 88};
    ENTER(device);
    if (profile != A100 || kind > 3) return NOT_SUPPORTED;
    *out = limit[kind];
    return OK;
}

int nvmlDeviceGetMarginTemperature(struct Device *device, Margin *out) {
    ENTER(device);
    if (profile == A100) return NOT_SUPPORTED;
    if (out->version != ((1u << 24) | sizeof *out)) return VERSION;
    out->margin = (int)setting(device->index, "margin", 24);
    return OK;
}

int nvmlDeviceGetGpuFabricInfoV(struct Device *device, Fabric2 *out) {
    unsigned version, size;
    ENTER(device);
    version = out->version;
    size = version & 0xffffff;
    if (!(version >> 24 == 2 && size == sizeof(Fabric2)) &&
        !(version >> 24 == 3 && size == sizeof(Fabric3)))
        return VERSION;
    memset(out, 0, size);
    out->version = version;
    out->state = (unsigned)setting(device->index, "fabric.state", profile == A100 ? 0 : 3);
    out->status = (unsigned)setting(device->index, "fabric.status", 0);
    out->healthMask = (unsigned)setting(device->index, "fabric.mask", profile == B200 ? 0x1aa : 0);
    if (version >> 24 == 3)
        ((Fabric3 *)out)->healthSummary = (uint8_t)setting(device->index, "fabric.summary", 0);
    return OK;
}

int nvmlDeviceGetComputeRunningProcesses_v3(struct Device *device, unsigned *count, Process *out) {
    unsigned there = 0, room = *count;
    ENTER(device);
    pthread_mutex_lock(&control_lock);
    for (int i = 0; i < event_count; i++) {
        Event *e = &events[i];
        if (e->type || (e->device >= 0 && e->device != device->index)) continue;
        if (there < room && out)
            out[there] = (Process){(unsigned)e->seq, e->data, e->gi, e->ci};
        there++;
    }
    pthread_mutex_unlock(&control_lock);
    *count = there;
    return there > room || (there && !out) ? SMALL : OK;
}
