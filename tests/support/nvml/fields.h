/* Field values: which profile knows which, and what it answers. */
enum { UINT = 1, ULONG = 2, ULL = 3, SINT = 5 };
typedef struct { unsigned first, last, profiles; int type, scoped; double base, rate; } Field;
enum { BY_LINK = 1, BY_LINK_OR_SUM = 2 };

static const Field FIELDS[] = {
    {1, 2, ALL, UINT, 0, 1, 0},                       /* ECC mode */
    {3, 6, ALL, ULL, 0, 0, 0},                        /* ECC errors */
    {38, 38, A100, ULL, 0, 0, 0},                     /* legacy NVLink totals */
    {45, 45, A100, ULL, 0, 0, 0},
    {52, 52, A100, ULL, 0, 3, 0},
    {59, 59, A100, ULL, 0, 0, 0},
    {74, 74, ALL, ULL, 0, 5e9, 1e8},                  /* clock event, ns */
    {75, 75, A100, ULL, 0, 0, 0},
    {76, 76, ALL, ULL, 0, 0, 0},
    {77, 79, A100, ULL, 0, 0, 0},
    {82, 82, ALL, UINT, 0, 58, 0},                    /* memory temperature */
    {83, 83, ALL, ULL, 0, 123456789, 4e5},            /* energy, mJ */
    {91, 91, A100, UINT, 0, 12, 0},                   /* NVLink count */
    {91, 91, H100 | B200, UINT, 0, 18, 0},
    {94, 94, ALL, UINT, 0, 9, 0},                     /* PCIe replays */
    {138, 141, A100 | H100, ULL, BY_LINK_OR_SUM, 1000, 1048576},
    {142, 145, A100 | H100 | B200, UINT, 0, 0, 0},    /* row remapping */
    {161, 163, H100, ULL, BY_LINK, 0, 0},             /* DL replay, recovery, CRC */
    {165, 165, A100 | H100 | B200, UINT, BY_LINK, 1, 0},
    {173, 173, NEW, ULL, 0, 2, 0},
    {179, 180, NEW, ULL, 0, 0, 0},
    {185, 185, ALL, UINT, 0, 432210, 0},              /* power, mW */
    {186, 186, ALL, UINT, 0, 444720, 0},
    {187, 187, ALL, UINT, 0, 200000, 0},
    {188, 190, ALL, UINT, 0, 700000, 0},
    {193, 193, NEW, SINT, 0, -8, 0},                  /* T.Limit */
    {194, 194, NEW, SINT, 0, -2, 0},
    {195, 196, NEW, SINT, 0, 0, 0},
    {197, 198, NEW, ULL, 0, 5e9, 2e7},                /* PCIe bytes */
    {201, 204, B200, ULL, BY_LINK, 1e6, 1e9},
    {206, 215, B200, ULL, BY_LINK, 0, 0},
    {219, 219, B200, ULL, BY_LINK, 0, 0},
    {221, 221, B200, ULL, BY_LINK, 0, 0},
    {230, 230, NEW, UINT, 0, 0, 0},                   /* recovery action */
    {269, 271, NEW, ULL, 0, 0, 0},                    /* clock event, ns */
};

static void fill(FieldValue *f, int device) {
    char name[40];
    const Field *field = NULL;
    unsigned links = profile == A100 ? 12 : 18;
    double number, factor = 1;

    f->nvmlReturn = NOT_SUPPORTED;
    if (f->fieldId >= 308 || (profile == A100 && f->fieldId > 200)) f->nvmlReturn = INVALID;
    for (size_t i = 0; i < sizeof FIELDS / sizeof *FIELDS; i++)
        if (f->fieldId >= FIELDS[i].first && f->fieldId <= FIELDS[i].last &&
            FIELDS[i].profiles & (unsigned)profile)
            field = &FIELDS[i];
    if (!field) return;
    if (field->scoped && f->scopeId >= links) {
        if (field->scoped != BY_LINK_OR_SUM || f->scopeId != UINT32_MAX) {
            f->nvmlReturn = INVALID;
            return;
        }
        factor = links;
    }
    snprintf(name, sizeof name, "e%u", f->fieldId);
    f->nvmlReturn = (unsigned)setting(device, name, 0);
    if (field->scoped && f->scopeId != UINT32_MAX) {
        snprintf(name, sizeof name, "e%u.%u", f->fieldId, f->scopeId);
        f->nvmlReturn = (unsigned)setting(device, name, f->nvmlReturn);
    }
    if (f->nvmlReturn) return;
    snprintf(name, sizeof name, "f%u", f->fieldId);
    number = setting(device, name, factor * (field->base + field->rate * elapsed));
    if (field->scoped && f->scopeId != UINT32_MAX) {
        snprintf(name, sizeof name, "f%u.%u", f->fieldId, f->scopeId);
        number = setting(device, name, number);
    }
    f->valueType = (unsigned)field->type;
    f->value.ull = 0;
    if (field->type == SINT) f->value.si = (int)number;
    else if (field->type == UINT) f->value.ui = (unsigned)number;
    else f->value.ull = (unsigned long long)number;
}

int nvmlDeviceGetFieldValues(struct Device *device, int count, FieldValue *values) {
    ENTER(device);
    if (count < 1 || !values) return INVALID;
    for (int i = 0; i < count; i++) fill(&values[i], device->index);
    return OK;
}

int nvmlDeviceGetNvLinkState(struct Device *device, unsigned link, unsigned *active) {
    char name[40];
    ENTER(device);
    if (profile == MIG) return NOT_SUPPORTED;
    if (link >= (profile == A100 ? 12u : 18u)) return INVALID;
    snprintf(name, sizeof name, "f165.%u", link);
    *active = (unsigned)setting(device->index, name, 1);
    return OK;
}
