/* MIG instances and profiling counters. */
int nvmlDeviceGetMigMode(struct Device *device, unsigned *current, unsigned *pending) {
    ENTER(device);
    *current = *pending = profile == MIG;
    return OK;
}

int nvmlDeviceGetMaxMigDeviceCount(struct Device *device, unsigned *count) {
    ENTER(device);
    *count = profile == MIG ? 7 : 0;
    return OK;
}

int nvmlDeviceGetMigDeviceHandleByIndex(struct Device *device, unsigned index,
                                        struct Device **mig) {
    ENTER(device);
    if (profile != MIG || index >= (unsigned)setting(device->index, "mig_instances", MAX_MIG))
        return NOT_FOUND;
    *mig = &devices[device->index][index + 1];
    return OK;
}

int nvmlDeviceGetGpuInstanceId(struct Device *device, unsigned *id) {
    ENTER(device);
    if (device->mig < 0) return INVALID;
    *id = MIG_GI[device->mig];
    return OK;
}

int nvmlDeviceGetComputeInstanceId(struct Device *device, unsigned *id) {
    ENTER(device);
    if (device->mig < 0) return INVALID;
    *id = 0;
    return OK;
}

int nvmlDeviceGetAttributes_v2(struct Device *device, Attributes *out) {
    ENTER(device);
    if (device->mig < 0) return NOT_SUPPORTED;
    memset(out, 0, sizeof *out);
    out->memorySizeMB = MIG_TOTAL[device->mig];
    out->gpuInstanceSliceCount = (unsigned)(MIG_PROFILE[device->mig][0] - '0');
    out->computeInstanceSliceCount = out->gpuInstanceSliceCount;
    return OK;
}

int nvmlGpmQueryDeviceSupport(struct Device *device, GpmSupport *out) {
    ENTER(device);
    out->isSupportedDevice = profile != A100;
    return OK;
}

int nvmlGpmSampleAlloc(struct Sample **sample) {
    ENTER_NONE();
    *sample = calloc(1, sizeof **sample);
    (*sample)->magic = SAMPLE_MAGIC;
    __atomic_add_fetch(&samples, 1, __ATOMIC_SEQ_CST);
    return OK;
}

int nvmlGpmSampleFree(struct Sample *sample) {
    if (!sample || sample->magic != SAMPLE_MAGIC) {
        trace("BAD ", -2, __func__);
        return INVALID;
    }
    sample->magic = 0;
    free(sample);
    __atomic_sub_fetch(&samples, 1, __ATOMIC_SEQ_CST);
    return OK;
}

static int take(struct Sample *sample, int device, int gi) {
    if (!sample || sample->magic != SAMPLE_MAGIC) return INVALID;
    sample->index = device;
    sample->gi = gi;
    sample->serial = __atomic_add_fetch(&sample_serial, 1, __ATOMIC_SEQ_CST);
    return OK;
}

int nvmlGpmSampleGet(struct Device *device, struct Sample *sample) {
    ENTER(device);
    if (profile == A100 || profile == MIG) return NOT_SUPPORTED;
    return take(sample, device->index, -1);
}

int nvmlGpmMigSampleGet(struct Device *device, unsigned gi, struct Sample *sample) {
    ENTER(device);
    if (profile != MIG || device->mig >= 0) return NOT_SUPPORTED;
    return take(sample, device->index, (int)gi);
}

int nvmlGpmMetricsGet(GpmMetricsGet *get) {
    struct Sample *a = get->sample1, *b = get->sample2;
    if (get->version != 1) return VERSION;
    if (!a || !b || a->magic != SAMPLE_MAGIC || b->magic != SAMPLE_MAGIC) {
        trace("BAD ", -2, __func__);
        return INVALID;
    }
    int code = enter(a->index, __func__);
    if (code) return code;
    if (a->index != b->index || a->gi != b->gi || !a->serial || a->serial >= b->serial)
        return INVALID;
    for (unsigned i = 0; i < get->numMetrics; i++) {
        GpmMetric *m = &get->metrics[i];
        static const double usual[] = {0, 93, 80.5, 40, 12, 55.25, 0, 50, 0, 5, 35.5};
        char name[32];
        double value = m->metricId <= 10 ? usual[m->metricId]
                       : m->metricId == 60 || m->metricId == 61 ? 1000 : -1;
        if (a->gi >= 0 && value >= 0) value = m->metricId >= 60 ? -1 : value / 2 + a->gi;
        snprintf(name, sizeof name, "gpm.%u", m->metricId);
        value = setting(a->index, name, value);
        m->nvmlReturn = value < 0 ? NOT_SUPPORTED : OK;
        m->value = value;
        m->shortName = m->longName = m->unit = "";
    }
    return OK;
}
