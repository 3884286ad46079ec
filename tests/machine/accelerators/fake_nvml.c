/* A libnvidia-ml.so.1 without a driver: the ABI of NVML, answers from the trace that FAKE_NVML names.
 *
 * One GPU a line: UUID, name (underscores for blanks), memory in MiB, compute capability major and minor,
 * then the UUIDs of its MIG slices, or "mig" alone for a GPU that is divided and has none.
 * Lines that begin with a blank belong to the GPU before them, or with "slice N" to one of its slices:
 *
 *      sm_clock 1410              a value; a value that is missing is NVML_ERROR_NOT_SUPPORTED
 *      xid 79                     an event, delivered once
 *      process PID BYTES SM       a process with memory and percent of SM utilization
 *      error CALL N               this call answers with nvmlReturn_t N, for this GPU; "*" is every call
 *      hang CALL, crash CALL      this call never returns, or ends the process with SIGSEGV
 *      lost                       every call answers with NVML_ERROR_GPU_IS_LOST
 *
 * A first line "error N" has nvmlInit answer with that nvmlReturn_t; "hang" never returns from nvmlInit; "crash" ends
 * the process with SIGSEGV. The trace is read again whenever the file has been replaced, so a test can change it while
 * a program runs. Units are those of NVML.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
    TIMEOUT = 10, GPU_IS_LOST = 15
};
enum { MAX_GPUS = 16, MAX_SLICES = 8, MAX_TEXT = 96, MAX_SETTINGS = 128, MAX_FAULTS = 16, MAX_EVENTS = 64 };
enum { MAX_PROCESSES = 16, XID_EVENT = 8, ALL = 0xffffffffu };

struct setting { char name[48]; double value; };
struct fault { char call[64]; int code; };
struct process { unsigned pid; unsigned long long bytes; unsigned sm; };
/* A handle: a GPU or one of its slices. */
struct device {
    char uuid[MAX_TEXT], name[MAX_TEXT];
    unsigned long long mib;
    int major, minor, divided, is_slice;
    unsigned slices, settings, faults, processes, events, delivered;
    struct setting setting[MAX_SETTINGS];
    struct fault fault[MAX_FAULTS];
    struct process process[MAX_PROCESSES];
    unsigned event[MAX_EVENTS];
};

static struct device gpus[MAX_GPUS], slices[MAX_GPUS][MAX_SLICES];
static unsigned count, registered;
static int failure, initialized;
static struct stat seen;

enum { HANG = -1, CRASH = -2 };

static void read_gpu(char *line) {
    struct device *gpu = &gpus[count];
    unsigned delivered = gpu->delivered;
    int used = 0;
    memset(gpu, 0, sizeof *gpu);
    gpu->delivered = delivered;
    if (sscanf(line, "%95s %95s %llu %d %d%n", gpu->uuid, gpu->name, &gpu->mib, &gpu->major, &gpu->minor, &used) < 5)
        return;
    for (char *c = gpu->name; *c; c++)
        if (*c == '_') *c = ' ';
    for (char *word = strtok(line + used, " \n"); word; word = strtok(NULL, " \n")) {
        struct device *slice = &slices[count][gpu->slices];
        gpu->divided = 1;
        if (strcmp(word, "mig") == 0 || gpu->slices == MAX_SLICES) continue;
        memset(slice, 0, sizeof *slice);
        slice->is_slice = 1;
        slice->mib = gpu->mib / 7;
        slice->major = gpu->major;
        snprintf(slice->uuid, MAX_TEXT, "%s", word);
        snprintf(slice->name, MAX_TEXT, "%.64s MIG 1g.5gb", gpu->name);
        gpu->slices++;
    }
    count++;
}

static void read_setting(struct device *device, const char *line) {
    char first[64], second[64];
    int words = sscanf(line, "%63s %63s", first, second), code = 0;
    struct process *process = &device->process[device->processes];
    if (words >= 1 && strcmp(first, "lost") == 0) {
        code = GPU_IS_LOST;
        strcpy(second, "*");
    } else if (words < 2) {
        return;
    } else if (strcmp(first, "hang") == 0) {
        code = HANG;
    } else if (strcmp(first, "crash") == 0) {
        code = CRASH;
    } else if (strcmp(first, "error") == 0) {
        sscanf(line, "%*s %*s %d", &code);
    } else if (strcmp(first, "xid") == 0) {
        if (device->events < MAX_EVENTS) device->event[device->events++] = (unsigned)atoi(second);
        return;
    } else if (strcmp(first, "process") == 0) {
        if (device->processes < MAX_PROCESSES
            && sscanf(line, "%*s %u %llu %u", &process->pid, &process->bytes, &process->sm) == 3)
            device->processes++;
        return;
    } else {
        if (device->settings == MAX_SETTINGS) return;
        snprintf(device->setting[device->settings].name, sizeof device->setting[0].name, "%.47s", first);
        device->setting[device->settings++].value = atof(second);
        return;
    }
    if (device->faults == MAX_FAULTS) return;
    snprintf(device->fault[device->faults].call, sizeof device->fault[0].call, "%s", second);
    device->fault[device->faults++].code = code;
}

static void read_trace(void) {
    const char *path = getenv("FAKE_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[1024];
    unsigned slice;
    int used;
    count = 0;
    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "error %d", &failure) == 1) break;
        if (strncmp(line, "hang", 4) == 0) for (;;) pause();
        if (strncmp(line, "crash", 5) == 0) raise(SIGSEGV);
        if (line[0] != ' ') {
            if (count < MAX_GPUS) read_gpu(line);
        } else if (count == 0) {
            continue;
        } else if (sscanf(line, " slice %u %n", &slice, &used) == 1 && slice < MAX_SLICES) {
            read_setting(&slices[count - 1][slice], line + used);
        } else {
            read_setting(&gpus[count - 1], line);
        }
    }
    if (file) fclose(file);
}

static void refresh(void) {
    const char *path = getenv("FAKE_NVML");
    struct stat now;
    if (!path || stat(path, &now) != 0) return;
    if (now.st_ino == seen.st_ino && now.st_mtim.tv_nsec == seen.st_mtim.tv_nsec) return;
    seen = now;
    read_trace();
}

/* Begin a call: read the trace if it is new, and apply the faults of the device. */
static int begin(struct device *device, const char *call) {
    if (!initialized) return UNINITIALIZED;
    refresh();
    if (!device) return INVALID_ARGUMENT;
    for (unsigned i = 0; i < device->faults; i++) {
        const struct fault *fault = &device->fault[i];
        if (strcmp(fault->call, "*") != 0 && strcmp(fault->call, call) != 0) continue;
        if (fault->code == HANG) for (;;) pause();
        if (fault->code == CRASH) raise(SIGSEGV);
        return fault->code;
    }
    return SUCCESS;
}

static int setting(const struct device *device, const char *name, double *value) {
    for (unsigned i = 0; i < device->settings; i++)
        if (strcmp(device->setting[i].name, name) == 0) {
            *value = device->setting[i].value;
            return SUCCESS;
        }
    return NOT_SUPPORTED;
}

#define BEGIN(device) \
    do { int code = begin(device, __func__); if (code) return code; } while (0)
#define GET(device, name, target) \
    do { double got; int code = setting(device, name, &got); if (code) return code; *(target) = got; } while (0)

int nvmlInitWithFlags(unsigned flags) {
    const char *path = getenv("FAKE_NVML");
    (void)flags;
    if (path) stat(path, &seen);
    read_trace();
    initialized = !failure;
    return failure;
}

int nvmlShutdown(void) { initialized = 0; return SUCCESS; }

int nvmlSystemGetDriverVersion(char *version, unsigned length) {
    snprintf(version, length, "580.95.05");
    return initialized ? SUCCESS : UNINITIALIZED;
}

int nvmlDeviceGetCount_v2(unsigned *number) {
    if (!initialized) return UNINITIALIZED;
    refresh();
    *number = count;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    if (index >= count) return INVALID_ARGUMENT;
    BEGIN(&gpus[index]);
    *handle = &gpus[index];
    return SUCCESS;
}

int nvmlDeviceGetUUID(struct device *device, char *uuid, unsigned length) {
    BEGIN(device);
    snprintf(uuid, length, "%s", device->uuid);
    return SUCCESS;
}

int nvmlDeviceGetName(struct device *device, char *name, unsigned length) {
    BEGIN(device);
    snprintf(name, length, "%s", device->name);
    return SUCCESS;
}

int nvmlDeviceGetMinorNumber(struct device *device, unsigned *minor) {
    BEGIN(device);
    *minor = (unsigned)(device - gpus);
    return SUCCESS;
}

struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; };

int nvmlDeviceGetPciInfo_v3(struct device *device, struct pci *pci) {
    BEGIN(device);
    memset(pci, 0, sizeof *pci);
    pci->bus = 0x17 + (unsigned)(device - gpus);
    snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", pci->bus);
    return SUCCESS;
}

struct memory { unsigned long long total, free, used; };
struct memory_v2 { unsigned version; unsigned long long total, reserved, free, used; };

/* `memory_used` and `memory_reserved` in bytes. Version 1 counts reserved memory as used, version 2 does not. */
int nvmlDeviceGetMemoryInfo(struct device *device, struct memory *memory) {
    double used = 0, reserved = 0;
    BEGIN(device);
    setting(device, "memory_used", &used);
    setting(device, "memory_reserved", &reserved);
    memory->total = device->mib << 20;
    memory->used = (unsigned long long)(used + reserved);
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo_v2(struct device *device, struct memory_v2 *memory) {
    struct memory first;
    double reserved = 0;
    BEGIN(device);
    if (memory->version != 0x02000028) return 25;
    setting(device, "memory_reserved", &reserved);
    nvmlDeviceGetMemoryInfo(device, &first);
    memory->total = first.total;
    memory->free = first.free;
    memory->reserved = (unsigned long long)reserved;
    memory->used = first.used - memory->reserved;
    return SUCCESS;
}

int nvmlDeviceGetCudaComputeCapability(struct device *device, int *major, int *minor) {
    BEGIN(device);
    *major = device->major;
    *minor = device->minor;
    return SUCCESS;
}

int nvmlDeviceGetClockInfo(struct device *device, unsigned type, unsigned *mhz) {
    BEGIN(device);
    GET(device, type == 1 ? "sm_clock" : "memory_clock", mhz);
    return SUCCESS;
}

struct temperature { unsigned version, sensor; int celsius; };

int nvmlDeviceGetTemperatureV(struct device *device, struct temperature *temperature) {
    BEGIN(device);
    GET(device, "temperature", &temperature->celsius);
    return SUCCESS;
}

int nvmlDeviceGetTemperature(struct device *device, unsigned sensor, unsigned *celsius) {
    BEGIN(device);
    if (sensor != 0) return INVALID_ARGUMENT;
    GET(device, "temperature", celsius);
    return SUCCESS;
}

/* Calls with one number as result: a handle, and where to write it. */
#define NUMBER(function, type, name) \
    int function(struct device *device, type *value) { BEGIN(device); GET(device, name, value); return SUCCESS; }

NUMBER(nvmlDeviceGetPowerUsage, unsigned, "power")
NUMBER(nvmlDeviceGetEnforcedPowerLimit, unsigned, "power_limit_enforced")
NUMBER(nvmlDeviceGetPowerManagementLimit, unsigned, "power_limit")
NUMBER(nvmlDeviceGetTotalEnergyConsumption, unsigned long long, "energy")
NUMBER(nvmlDeviceGetPcieReplayCounter, unsigned, "pcie_replay")
NUMBER(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, "clock_event_reasons")
NUMBER(nvmlDeviceGetRetiredPagesPendingStatus, unsigned, "retired_pending")
NUMBER(nvmlDeviceGetGpuInstanceId, unsigned, "gpu_instance")

struct utilization { unsigned gpu, memory; };

int nvmlDeviceGetUtilizationRates(struct device *device, struct utilization *utilization) {
    BEGIN(device);
    GET(device, "utilization", &utilization->gpu);
    GET(device, "memory_utilization", &utilization->memory);
    return SUCCESS;
}

int nvmlDeviceGetEncoderUtilization(struct device *device, unsigned *percent, unsigned *period_us) {
    BEGIN(device);
    *period_us = 167000;
    GET(device, "encoder", percent);
    return SUCCESS;
}

int nvmlDeviceGetDecoderUtilization(struct device *device, unsigned *percent, unsigned *period_us) {
    BEGIN(device);
    *period_us = 167000;
    GET(device, "decoder", percent);
    return SUCCESS;
}

int nvmlDeviceGetPcieThroughput(struct device *device, unsigned counter, unsigned *kilobytes) {
    BEGIN(device);
    GET(device, counter == 0 ? "pcie_tx" : "pcie_rx", kilobytes);
    return SUCCESS;
}

int nvmlDeviceGetRemappedRows(
    struct device *device, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    BEGIN(device);
    GET(device, "remapped_corrected", corrected);
    GET(device, "remapped_uncorrected", uncorrected);
    GET(device, "remapped_pending", pending);
    GET(device, "remapped_failed", failed);
    return SUCCESS;
}

int nvmlDeviceGetTotalEccErrors(struct device *device, unsigned type, unsigned counter, unsigned long long *errors) {
    static const char *names[2][2] = {{"ecc_sbe_volatile", "ecc_sbe_aggregate"}, {"ecc_dbe_volatile", "ecc_dbe_aggregate"}};
    BEGIN(device);
    GET(device, names[type & 1][counter & 1], errors);
    return SUCCESS;
}

int nvmlDeviceGetRetiredPages(struct device *device, unsigned cause, unsigned *number, unsigned long long *pages) {
    unsigned there, room = *number;
    BEGIN(device);
    GET(device, cause == 0 ? "retired_sbe" : "retired_dbe", &there);
    *number = there;
    if (room < there) return INSUFFICIENT_SIZE;
    for (unsigned i = 0; pages && i < there; i++) pages[i] = 4096ull * i;
    return SUCCESS;
}

struct violation { unsigned long long reference_us, violation_ns; };

int nvmlDeviceGetViolationStatus(struct device *device, unsigned policy, struct violation *violation) {
    char name[32];
    BEGIN(device);
    snprintf(name, sizeof name, "violation_%u", policy);
    GET(device, name, &violation->violation_ns);
    return SUCCESS;
}

struct expiry { unsigned year; unsigned short month, day, hour, minute, second; unsigned char status; };
struct feature { unsigned code, state; char licence[128], product[128]; unsigned enabled; struct expiry expiry; };
struct features { int supported; unsigned number; struct feature feature[3]; };

int nvmlDeviceGetGridLicensableFeatures_v4(struct device *device, struct features *features) {
    unsigned licensed;
    BEGIN(device);
    memset(features, 0, sizeof *features);
    GET(device, "vgpu_licensed", &licensed);
    features->supported = 1;
    features->number = 1;
    features->feature[0].code = 1;
    features->feature[0].state = licensed;
    return SUCCESS;
}

/* ---- field values: `field_N` of the trace, the same for all scopes ---- */

union value { double number; unsigned long long integer; };
struct field {
    unsigned id, scope;
    long long timestamp_us, latency_us;
    unsigned type, code;
    union value value;
};

int nvmlDeviceGetFieldValues(struct device *device, int number, struct field *fields) {
    BEGIN(device);
    for (int i = 0; i < number; i++) {
        char name[32];
        double value = 0;
        snprintf(name, sizeof name, "field_%u", fields[i].id);
        fields[i].code = (unsigned)setting(device, name, &value);
        fields[i].type = 3;
        fields[i].value.integer = (unsigned long long)value;
    }
    return SUCCESS;
}

/* ---- GPM: `gpm_N` of the trace; metrics need two samples of one device, in order ---- */

struct gpm_sample { struct device *device; unsigned long number; };
struct metric { unsigned id, code; double value; const char *texts[3]; };
struct metrics_get { unsigned version, number; struct gpm_sample *first, *second; struct metric metrics[]; };
struct gpm_support { unsigned version, supported; };

int nvmlGpmQueryDeviceSupport(struct device *device, struct gpm_support *support) {
    double value;
    BEGIN(device);
    support->supported = setting(device, "gpm_1", &value) == SUCCESS;
    for (int i = 0; i < MAX_SLICES && !device->is_slice; i++)
        if (setting(&slices[device - gpus][i], "gpm_1", &value) == SUCCESS) support->supported = 1;
    return SUCCESS;
}

int nvmlGpmSampleAlloc(struct gpm_sample **sample) {
    *sample = calloc(1, sizeof **sample);
    return SUCCESS;
}

int nvmlGpmSampleFree(struct gpm_sample *sample) {
    free(sample);
    return SUCCESS;
}

int nvmlGpmSampleGet(struct device *device, struct gpm_sample *sample) {
    static unsigned long number;
    BEGIN(device);
    *sample = (struct gpm_sample){device, ++number};
    return SUCCESS;
}

int nvmlGpmMigSampleGet(struct device *device, unsigned instance, struct gpm_sample *sample) {
    for (int i = 0; i < MAX_SLICES; i++) {
        struct device *slice = &slices[device - gpus][i];
        double id;
        if (setting(slice, "gpu_instance", &id) == SUCCESS && (unsigned)id == instance)
            return nvmlGpmSampleGet(slice, sample);
    }
    return NOT_FOUND;
}

int nvmlGpmMetricsGet(struct metrics_get *get) {
    if (get->version != 1 || !get->first->device || get->first->device != get->second->device) return INVALID_ARGUMENT;
    if (get->first->number >= get->second->number) return INVALID_ARGUMENT;
    for (unsigned i = 0; i < get->number; i++) {
        char name[32];
        snprintf(name, sizeof name, "gpm_%u", get->metrics[i].id);
        get->metrics[i].code = (unsigned)setting(get->first->device, name, &get->metrics[i].value);
    }
    return SUCCESS;
}

/* ---- events ---- */

struct event { struct device *device; unsigned long long type, data; unsigned gpu_instance, compute_instance; };

int nvmlEventSetCreate(void **set) { *set = &registered; return SUCCESS; }
int nvmlEventSetFree(void *set) { (void)set; return SUCCESS; }

int nvmlDeviceRegisterEvents(struct device *device, unsigned long long types, void *set) {
    BEGIN(device);
    if (!(types & XID_EVENT) || set != &registered) return INVALID_ARGUMENT;
    registered |= 1u << (device - gpus);
    return SUCCESS;
}

int nvmlEventSetWait_v2(void *set, struct event *event, unsigned timeout_ms) {
    (void)set;
    refresh();
    for (unsigned i = 0; i < count; i++)
        if (registered & 1u << i && gpus[i].delivered < gpus[i].events) {
            *event = (struct event){&gpus[i], XID_EVENT, gpus[i].event[gpus[i].delivered++], ALL, ALL};
            return SUCCESS;
        }
    usleep(timeout_ms * 1000);
    return TIMEOUT;
}

/* ---- processes ---- */

struct running { unsigned pid; unsigned long long bytes; unsigned gpu_instance, compute_instance; };
struct used { unsigned pid; unsigned long long timestamp_us; unsigned sm, memory, encoder, decoder; };

int nvmlDeviceGetComputeRunningProcesses_v3(struct device *device, unsigned *number, struct running *running) {
    unsigned room = *number;
    BEGIN(device);
    *number = device->processes;
    if (room < device->processes) return INSUFFICIENT_SIZE;
    for (unsigned i = 0; running && i < device->processes; i++)
        running[i] = (struct running){device->process[i].pid, device->process[i].bytes, ALL, ALL};
    return SUCCESS;
}

int nvmlDeviceGetProcessUtilization(
    struct device *device, struct used *used, unsigned *number, unsigned long long since_us) {
    BEGIN(device);
    if (!device->processes) return NOT_FOUND;
    *number = device->processes;
    if (!used) return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < device->processes; i++)
        used[i] = (struct used){device->process[i].pid, since_us + 1, device->process[i].sm, 0, 0, 0};
    return SUCCESS;
}

/* ---- MIG ---- */

int nvmlDeviceGetMigMode(struct device *device, unsigned *current, unsigned *pending) {
    BEGIN(device);
    if (device->major < 8) return NOT_SUPPORTED;
    *current = *pending = (unsigned)device->divided;
    return SUCCESS;
}

int nvmlDeviceGetMaxMigDeviceCount(struct device *device, unsigned *number) {
    BEGIN(device);
    *number = device->major < 8 ? 0 : 7;
    return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(struct device *device, unsigned index, void **handle) {
    BEGIN(device);
    if (index >= device->slices) return NOT_FOUND;
    *handle = &slices[device - gpus][index];
    return SUCCESS;
}
