/* A libnvidia-ml.so.1 without a driver: the ABI of NVML, answers from the file that FAKE_NVML names.
 *
 * One GPU a line: UUID, name (underscores for blanks), memory in MiB, compute capability major and minor,
 * then the UUIDs of its MIG slices, or "mig" alone for a GPU that is divided and has none.
 * A first line "error N" has every call answer with that nvmlReturn_t; "hang" never returns from nvmlInit;
 * "crash" ends the process with SIGSEGV.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, UNINITIALIZED = 1 };
enum { MAX_GPUS = 16, MAX_SLICES = 8, MAX_TEXT = 96 };

struct slice { char uuid[MAX_TEXT]; };
struct gpu {
    char uuid[MAX_TEXT], name[MAX_TEXT];
    unsigned long long mib;
    int major, minor, divided;
    unsigned slices;
    struct slice slice[MAX_SLICES];
};
struct memory { unsigned long long total, free, used; };

static struct gpu gpus[MAX_GPUS];
static unsigned count;
static int failure, initialized;

static void read_gpu(char *line) {
    struct gpu *gpu = &gpus[count];
    int used = 0;
    if (sscanf(line, "%95s %95s %llu %d %d%n", gpu->uuid, gpu->name, &gpu->mib, &gpu->major, &gpu->minor, &used) < 5)
        return;
    for (char *c = gpu->name; *c; c++)
        if (*c == '_') *c = ' ';
    for (char *word = strtok(line + used, " \n"); word; word = strtok(NULL, " \n")) {
        gpu->divided = 1;
        if (strcmp(word, "mig") != 0 && gpu->slices < MAX_SLICES)
            snprintf(gpu->slice[gpu->slices++].uuid, MAX_TEXT, "%s", word);
    }
    count++;
}

int nvmlInitWithFlags(unsigned flags) {
    const char *path = getenv("FAKE_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[1024];
    (void)flags;
    count = 0;
    while (file && fgets(line, sizeof line, file) && count < MAX_GPUS) {
        if (sscanf(line, "error %d", &failure) == 1) break;
        if (strncmp(line, "hang", 4) == 0) for (;;) pause();
        if (strncmp(line, "crash", 5) == 0) raise(SIGSEGV);
        read_gpu(line);
    }
    if (file) fclose(file);
    initialized = !failure;
    return failure;
}

int nvmlShutdown(void) { initialized = 0; return SUCCESS; }


int nvmlDeviceGetCount_v2(unsigned *number) {
    if (!initialized) return UNINITIALIZED;
    *number = count;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    if (index >= count) return INVALID_ARGUMENT;
    *handle = &gpus[index];
    return SUCCESS;
}

/* A handle is a GPU or one of its slices; both begin with their UUID. */
int nvmlDeviceGetUUID(void *handle, char *uuid, unsigned length) {
    snprintf(uuid, length, "%s", (const char *)handle);
    return SUCCESS;
}

int nvmlDeviceGetName(struct gpu *gpu, char *name, unsigned length) {
    snprintf(name, length, "%s", gpu->name);
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(struct gpu *gpu, struct memory *memory) {
    memory->total = gpu->mib << 20;
    memory->free = memory->total;
    memory->used = 0;
    return SUCCESS;
}

int nvmlDeviceGetCudaComputeCapability(struct gpu *gpu, int *major, int *minor) {
    *major = gpu->major;
    *minor = gpu->minor;
    return SUCCESS;
}

int nvmlDeviceGetMigMode(struct gpu *gpu, unsigned *current, unsigned *pending) {
    if (gpu->major < 8) return NOT_SUPPORTED;
    *current = *pending = gpu->divided;
    return SUCCESS;
}

int nvmlDeviceGetMaxMigDeviceCount(struct gpu *gpu, unsigned *number) {
    *number = gpu->major < 8 ? 0 : 7;
    return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(struct gpu *gpu, unsigned index, void **handle) {
    if (index >= gpu->slices) return NOT_FOUND;
    *handle = &gpu->slice[index];
    return SUCCESS;
}
