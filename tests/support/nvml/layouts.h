/* The structures as nvidia-ml-py lays them out; a test compares sizes and places. */
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory2;
typedef struct {
    char busIdLegacy[16];
    unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} PciInfo;
typedef union {
    double d; unsigned ui; unsigned long ul; unsigned long long ull; long long sll; int si;
    unsigned short us;
} Value;
typedef struct {
    uint32_t fieldId, scopeId;
    int64_t timestamp, latencyUsec;
    unsigned valueType, nvmlReturn;
    Value value;
} FieldValue;
typedef struct { unsigned version, sensorType; int temperature; } Temperature;
typedef struct { unsigned version; int margin; } Margin;
typedef struct {
    unsigned version;
    uint8_t clusterUuid[16];
    unsigned status;
    uint32_t cliqueId;
    unsigned state;
    uint32_t healthMask;
} Fabric2;
typedef struct { Fabric2 v2; uint8_t healthSummary; } Fabric3;
typedef struct { unsigned version, isSupportedDevice; } GpmSupport;
typedef struct {
    unsigned metricId, nvmlReturn;
    double value;
    const char *shortName, *longName, *unit;
} GpmMetric;
typedef struct {
    unsigned version, numMetrics;
    struct Sample *sample1, *sample2;
    GpmMetric metrics[];
} GpmMetricsGet;
typedef struct {
    unsigned multiprocessorCount, sharedCopyEngineCount, sharedDecoderCount, sharedEncoderCount,
        sharedJpegCount, sharedOfaCount, gpuInstanceSliceCount, computeInstanceSliceCount;
    unsigned long long memorySizeMB;
} Attributes;
typedef struct {
    struct Device *device;
    unsigned long long eventType, eventData;
    unsigned gpuInstanceId, computeInstanceId;
} EventData;
typedef struct {
    unsigned pid;
    unsigned long long usedGpuMemory;
    unsigned gpuInstanceId, computeInstanceId;
} Process;
