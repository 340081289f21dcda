/* Event sets, and what tests ask the fake itself. */
int nvmlEventSetCreate(struct EventSet **set) {
    ENTER_NONE();
    *set = calloc(1, sizeof **set);
    (*set)->magic = SET_MAGIC;
    __atomic_add_fetch(&sets, 1, __ATOMIC_SEQ_CST);
    return OK;
}

int nvmlEventSetFree(struct EventSet *set) {
    if (!set || set->magic != SET_MAGIC) return INVALID;
    trace("", -2, __func__);
    set->magic = 0;
    free(set);
    __atomic_sub_fetch(&sets, 1, __ATOMIC_SEQ_CST);
    return OK;
}

int nvmlDeviceGetSupportedEventTypes(struct Device *device, unsigned long long *types) {
    ENTER(device);
    *types = profile == A100 ? 0x11f : 0x91ff;
    return OK;
}

int nvmlDeviceRegisterEvents(struct Device *device, unsigned long long types,
                             struct EventSet *set) {
    ENTER(device);
    if (!set || set->magic != SET_MAGIC || !types) return INVALID;
    set->registered[device->index] = 1;
    return OK;
}

int nvmlEventSetWait_v2(struct EventSet *set, EventData *out, unsigned timeout_ms) {
    double end = monotonic() + timeout_ms / 1e3;
    Rule rule;
    if (!set || set->magic != SET_MAGIC) return INVALID;
    if (init_count <= 0) return UNINITIALIZED;
    trace("", -2, __func__);
    do {
        if (find_rule("fail", -2, __func__, &rule)) return rule.code;
        pthread_mutex_lock(&control_lock);
        for (int i = 0; i < event_count; i++) {
            Event *e = &events[i];
            if (!e->type || e->seq <= set->seen || !set->registered[e->device]) continue;
            set->seen = e->seq;
            *out = (EventData){&devices[e->device][0], e->type, e->data, e->gi, e->ci};
            pthread_mutex_unlock(&control_lock);
            return OK;
        }
        pthread_mutex_unlock(&control_lock);
        usleep(2000);
    } while (monotonic() < end);
    return TIMEOUT;
}

void fakeOutstanding(int *inits, int *open_sets, int *open_samples) {
    *inits = init_count;
    *open_sets = sets;
    *open_samples = samples;
}

#define LAYOUT(name, type) if (!strcmp(structure, name)) return (int)sizeof(type)
int fakeSize(const char *structure) {
    LAYOUT("c_nvmlUtilization_t", Utilization);
    LAYOUT("c_nvmlMemory_t", Memory);
    LAYOUT("c_nvmlMemory_v2_t", Memory2);
    LAYOUT("nvmlPciInfo_t", PciInfo);
    LAYOUT("c_nvmlFieldValue_t", FieldValue);
    LAYOUT("c_nvmlTemperature_v1_t", Temperature);
    LAYOUT("c_nvmlMarginTemperature_v1_t", Margin);
    LAYOUT("c_nvmlGpuFabricInfo_v2_t", Fabric2);
    LAYOUT("c_nvmlGpuFabricInfo_v3_t", Fabric3);
    LAYOUT("c_nvmlGpmSupport_t", GpmSupport);
    LAYOUT("c_nvmlGpmMetric_t", GpmMetric);
    LAYOUT("c_nvmlDeviceAttributes", Attributes);
    LAYOUT("c_nvmlEventData_t", EventData);
    LAYOUT("c_nvmlProcessInfo_v3_t", Process);
    return -1;
}

#define OFFSET(name, type, member) \
    if (!strcmp(member_of, name)) return (int)offsetof(type, member)
int fakeOffset(const char *member_of) {
    OFFSET("c_nvmlMemory_v2_t.used", Memory2, used);
    OFFSET("nvmlPciInfo_t.busId", PciInfo, busId);
    OFFSET("c_nvmlFieldValue_t.nvmlReturn", FieldValue, nvmlReturn);
    OFFSET("c_nvmlFieldValue_t.value", FieldValue, value);
    OFFSET("c_nvmlGpuFabricInfo_v2_t.healthMask", Fabric2, healthMask);
    OFFSET("c_nvmlGpuFabricInfo_v3_t.healthSummary", Fabric3, healthSummary);
    OFFSET("c_nvmlGpmMetric_t.value", GpmMetric, value);
    OFFSET("c_nvmlGpmMetricsGet_t.metrics", GpmMetricsGet, metrics);
    OFFSET("c_nvmlDeviceAttributes.memorySizeMB", Attributes, memorySizeMB);
    OFFSET("c_nvmlEventData_t.gpuInstanceId", EventData, gpuInstanceId);
    OFFSET("c_nvmlProcessInfo_v3_t.gpuInstanceId", Process, gpuInstanceId);
    return -1;
}
