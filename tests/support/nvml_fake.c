/* A stand-in for libnvidia-ml.so.1, with the calls that laggard makes and the types of nvml.h that they need.
 *
 * The file named by NVML_FAKE says what it answers, a line for each call and device:
 *
 *     count 8                  how many devices
 *     rows_pending 1           of all of them
 *     3.ecc_volatile 2         of device 3; it wins over the line for all
 *     3.ecc_volatile error 15  that nvmlReturn_t instead
 *     init hang                never returns, and no signal but SIGKILL ends it
 *     init sleep 2             returns late
 *     3.lost_after 10          after ten calls for it: the device is lost
 *     field215 error 3         a field of nvmlDeviceGetFieldValues; field215.4: its value for link 4
 *     type194 1                the nvmlValueType_t that is returned with the field
 *     fabric_versions 2        the newest version of nvmlGpuFabricInfoV_t that it knows
 *
 * Without a line each call answers for a healthy, idle board. Built with -DOLD_DRIVER it lacks what older drivers lack.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEVICES 64
#define SUCCESS 0
#define INVALID_ARGUMENT 2
#define NOT_SUPPORTED 3
#define NOT_FOUND 6
#define INSUFFICIENT_SIZE 7
#define GPU_IS_LOST 15
#define ARGUMENT_VERSION_MISMATCH 25

typedef struct device {
    int index;
    int calls;
} *device_t;

typedef struct {
    char legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
} pci_info_t;

typedef struct {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
} process_t;

typedef struct {
    unsigned char cluster_uuid[16];
    int status;
    unsigned clique;
    unsigned char state;
} old_fabric_t;

typedef struct {
    unsigned version; /* the size, and the number of the version above it */
    unsigned char cluster_uuid[16];
    int status;
    unsigned clique;
    unsigned char state;
    unsigned health_mask;
    unsigned char health_summary; /* from version 3 on */
} fabric_t;

typedef struct {
    unsigned version;
    unsigned long long counts[11];
    unsigned threshold_exceeded;
} sram_errors_t;

typedef struct {
    unsigned version, channel, tpc;
} repair_t;

typedef struct {
    unsigned version, unrepairable;
} unrepairable_t;

typedef union {
    double d;
    unsigned ui;
    unsigned long ul;
    unsigned long long ull;
    long long sll;
    int si;
} value_t; /* little-endian: a number in sll is there for each narrower member */

typedef struct {
    unsigned field, scope;
    long long timestamp, latency;
    int type, result;
    value_t value;
} field_t;

static struct device devices[DEVICES];
static char scenario[1 << 16];

static void load(void)
{
    const char *path = getenv("NVML_FAKE");
    FILE *file = path ? fopen(path, "r") : NULL;
    if (file) {
        scenario[fread(scenario, 1, sizeof scenario - 1, file)] = '\0';
        fclose(file);
    }
}

static void hang(void)
{
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, NULL);
    for (;;)
        pause();
}

/* The rest of the line that begins with the key; NULL: there is none. */
static const char *line_of(const char *key)
{
    size_t length = strlen(key);
    for (const char *line = scenario; line && *line; line = strchr(line, '\n'), line = line ? line + 1 : NULL)
        if (!strncmp(line, key, length) && line[length] == ' ')
            return line + length + 1;
    return NULL;
}

/* What the scenario says of a call. The value goes to `answer`, which holds the healthy one before. */
static int ask(device_t device, const char *key, long long *answer)
{
    char own[80];
    const char *line = NULL;
    long long limit;
    if (device) {
        snprintf(own, sizeof own, "%d.lost_after", device->index);
        if ((line = line_of(own)) && sscanf(line, "%lld", &limit) == 1 && device->calls++ >= limit)
            return GPU_IS_LOST;
        snprintf(own, sizeof own, "%d.%s", device->index, key);
        line = line_of(own);
    }
    if (!line)
        line = line_of(key);
    if (!line)
        return SUCCESS;
    if (!strncmp(line, "error ", 6))
        return atoi(line + 6);
    if (!strncmp(line, "hang", 4))
        hang();
    if (!strncmp(line, "sleep ", 6)) {
        sleep(atoi(line + 6));
        return SUCCESS;
    }
    *answer = atoll(line);
    return SUCCESS;
}

static int ask_unsigned(device_t device, const char *key, unsigned *answer, unsigned healthy)
{
    long long value = healthy;
    int result = ask(device, key, &value);
    *answer = (unsigned)value;
    return result;
}

int nvmlInitWithFlags(unsigned flags)
{
    long long ignored = flags;
    load();
    for (int index = 0; index < DEVICES; index++)
        devices[index].index = index;
    return ask(NULL, "init", &ignored);
}

int nvmlShutdown(void) { return SUCCESS; }

const char *nvmlErrorString(int result)
{
    static char text[32];
    snprintf(text, sizeof text, "error %d", result);
    return text;
}

int nvmlSystemGetDriverVersion(char *text, unsigned length)
{
    snprintf(text, length, "570.124.06");
    return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned *count) { return ask_unsigned(NULL, "count", count, 8); }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t *device)
{
    long long ignored = 0;
    *device = &devices[index % DEVICES];
    return ask(*device, "handle", &ignored);
}

int nvmlDeviceGetPciInfo_v3(device_t device, pci_info_t *info)
{
    long long bus = 0x10 + device->index;
    int result = ask(device, "bus", &bus);
    memset(info, 0, sizeof *info);
    info->bus = (unsigned)bus;
    snprintf(info->bus_id, sizeof info->bus_id, "00000000:%02X:00.0", (unsigned)bus);
    return result;
}

int nvmlDeviceGetUUID(device_t device, char *text, unsigned length)
{
    long long ignored = 0;
    snprintf(text, length, "GPU-0000000%d-0000-0000-0000-000000000000", device->index);
    return ask(device, "uuid", &ignored);
}

int nvmlDeviceGetName(device_t device, char *text, unsigned length)
{
    long long ignored = 0;
    snprintf(text, length, "NVIDIA H100 80GB HBM3");
    return ask(device, "name", &ignored);
}

int nvmlDeviceGetBoardPartNumber(device_t device, char *text, unsigned length)
{
    long long ignored = 0;
    snprintf(text, length, "692-2G520-0200-000");
    return ask(device, "board_part", &ignored);
}

int nvmlDeviceGetVbiosVersion(device_t device, char *text, unsigned length)
{
    long long ignored = 0;
    snprintf(text, length, "96.00.89.00.01");
    return ask(device, "vbios", &ignored);
}

int nvmlDeviceGetMinorNumber(device_t device, unsigned *minor)
{
    return ask_unsigned(device, "minor", minor, device->index);
}

int nvmlDeviceGetMigMode(device_t device, unsigned *current, unsigned *pending)
{
    *pending = 0;
    return ask_unsigned(device, "mig", current, 0);
}

int nvmlDeviceGetMaxMigDeviceCount(device_t device, unsigned *count)
{
    return ask_unsigned(device, "most_mig_devices", count, 7);
}

int nvmlDeviceGetMigDeviceHandleByIndex(device_t device, unsigned index, device_t *part)
{
    unsigned count = 0;
    int result = ask_unsigned(device, "mig_devices", &count, 0);
    *part = device;
    return result ? result : index < count ? 0 : NOT_FOUND;
}

int nvmlDeviceGetMemoryInfo(device_t device, unsigned long long *memory) /* total, free, used */
{
    long long used = 600;
    int result = ask(device, "memory_used_mib", &used);
    memory[0] = 81559ull << 20;
    memory[2] = (unsigned long long)used << 20;
    memory[1] = memory[0] - memory[2];
    return result;
}

int nvmlDeviceGetPersistenceMode(device_t device, unsigned *mode)
{
    return ask_unsigned(device, "persistence", mode, 1);
}

int nvmlDeviceGetTotalEccErrors(device_t device, int error, int counter, unsigned long long *count)
{
    long long value = 0;
    int result = ask(device, counter ? "ecc_aggregate" : "ecc_volatile", &value);
    *count = error == 1 ? (unsigned long long)value : 0;
    return result;
}

#ifndef OLD_DRIVER
int nvmlDeviceGetRemappedRows(device_t device, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                              unsigned *failed)
{
    *corrected = *uncorrected = 0;
    int result = ask_unsigned(device, "rows_pending", pending, 0);
    return result ? result : ask_unsigned(device, "rows_failed", failed, 0);
}

int nvmlDeviceGetCurrentClocksEventReasons(device_t device, unsigned long long *reasons)
{
    long long value = 1;
    int result = ask(device, "reasons", &value);
    *reasons = (unsigned long long)value;
    return result;
}

int nvmlDeviceGetMarginTemperature(device_t device, unsigned *margin)
{
    return ask_unsigned(device, "margin", margin + 1, 54); /* after the version */
}

static int fabric(device_t device, unsigned char *state, int *status)
{
    unsigned value = 0;
    int result = ask_unsigned(device, "fabric_state", &value, 3);
    *state = (unsigned char)value;
    return result ? result : ask_unsigned(device, "fabric_status", (unsigned *)status, 0);
}

int nvmlDeviceGetGpuFabricInfo(device_t device, old_fabric_t *info)
{
    info->clique = 7;
    return fabric(device, &info->state, &info->status);
}

int nvmlDeviceGetSramEccErrorStatus(device_t device, sram_errors_t *errors)
{
    if (errors->version != (sizeof *errors | 1 << 24))
        return ARGUMENT_VERSION_MISMATCH;
    return ask_unsigned(device, "sram_threshold", &errors->threshold_exceeded, 0);
}

int nvmlDeviceGetRepairStatus(device_t device, repair_t *repair)
{
    int result = ask_unsigned(device, "repair_channel", &repair->channel, 0);
    return result ? result : ask_unsigned(device, "repair_tpc", &repair->tpc, 0);
}

int nvmlDeviceGetUnrepairableMemoryFlag_v1(device_t device, unrepairable_t *memory)
{
    return ask_unsigned(device, "unrepairable_memory", &memory->unrepairable, 0);
}

int nvmlDeviceGetGpuFabricInfoV(device_t device, fabric_t *info)
{
    unsigned newest, mask, summary, version = info->version >> 24;
    ask_unsigned(device, "fabric_versions", &newest, 3);
    ask_unsigned(device, "fabric_mask", &mask, 0xAA);
    ask_unsigned(device, "fabric_summary", &summary, 1);
    if (version > newest || info->version != (version << 24 | (version == 3 ? 40 : 36)))
        return ARGUMENT_VERSION_MISMATCH;
    info->clique = 7;
    info->health_mask = mask;
    if (version == 3)
        info->health_summary = (unsigned char)summary;
    return fabric(device, &info->state, &info->status);
}
#endif

/* What nvmlDeviceGetCurrentClocksEventReasons was called before driver 535; newer ones have both. */
int nvmlDeviceGetCurrentClocksThrottleReasons(device_t device, unsigned long long *reasons)
{
    long long value = 1;
    int result = ask(device, "reasons", &value);
    *reasons = (unsigned long long)value;
    return result;
}

int nvmlDeviceGetTemperature(device_t device, int sensor, unsigned *celsius)
{
    int result = ask_unsigned(device, "temperature", celsius, 33);
    (void)sensor;
    return result ? result : ask_unsigned(device, "old_temperature", celsius, *celsius);
}

/* Its successor, since driver 570. */
typedef struct {
    unsigned version;
    int sensor, celsius;
} temperature_t;

int nvmlDeviceGetTemperatureV(device_t device, temperature_t *answer)
{
    unsigned celsius = 33;
    int result = ask_unsigned(device, "temperature", &celsius, 33);
    answer->celsius = (int)celsius;
    return result ? result : ask_unsigned(device, "temperature_v", &celsius, celsius);
}

int nvmlDeviceGetTemperatureThreshold(device_t device, int threshold, unsigned *celsius)
{
    static const unsigned healthy[] = {92, 89, 95, 87};
    return ask_unsigned(device, "threshold", celsius, healthy[threshold & 3]);
}

int nvmlDeviceGetMaxClockInfo(device_t device, int type, unsigned *mhz)
{
    return ask_unsigned(device, type == 1 ? "max_sm" : "max_memory", mhz, type == 1 ? 1980 : 2619);
}

int nvmlDeviceGetApplicationsClock(device_t device, int type, unsigned *mhz)
{
    return ask_unsigned(device, type == 1 ? "application_sm" : "application_memory", mhz, type == 1 ? 1980 : 2619);
}

int nvmlDeviceGetDefaultApplicationsClock(device_t device, int type, unsigned *mhz)
{
    (void)type;
    return ask_unsigned(device, "default_sm", mhz, 1980);
}

int nvmlDeviceGetClockInfo(device_t device, int type, unsigned *mhz)
{
    (void)type;
    return ask_unsigned(device, "sm", mhz, 345);
}

int nvmlDeviceGetPowerManagementLimit(device_t device, unsigned *milliwatts)
{
    return ask_unsigned(device, "power_limit", milliwatts, 700000);
}

int nvmlDeviceGetEnforcedPowerLimit(device_t device, unsigned *milliwatts)
{
    unsigned asked;
    ask_unsigned(device, "power_limit", &asked, 700000);
    return ask_unsigned(device, "enforced_power_limit", milliwatts, asked);
}

int nvmlDeviceGetPowerManagementDefaultLimit(device_t device, unsigned *milliwatts)
{
    return ask_unsigned(device, "default_power_limit", milliwatts, 700000);
}

static int processes(device_t device, unsigned *count, process_t *list)
{
    long long pid = 0;
    unsigned room = *count;
    int result = ask(device, "process", &pid);
    if (result)
        return result;
    *count = pid != 0;
    if (!pid)
        return SUCCESS;
    if (!list || room < 1)
        return INSUFFICIENT_SIZE;
    list[0] = (process_t){.pid = (unsigned)pid, .used = 1 << 20};
    return SUCCESS;
}

#ifndef OLD_DRIVER
int nvmlDeviceGetComputeRunningProcesses_v3(device_t device, unsigned *count, process_t *list)
{
    return processes(device, count, list);
}
#else
int nvmlDeviceGetComputeRunningProcesses_v2(device_t device, unsigned *count, process_t *list)
{
    return processes(device, count, list);
}
#endif

int nvmlDeviceGetNvLinkState(device_t device, unsigned link, unsigned *up)
{
    char key[32];
    unsigned links = 0;
    int result = ask_unsigned(device, "links", &links, 18);
    if (result)
        return result;
    if (link >= links)
        return link ? INVALID_ARGUMENT : NOT_SUPPORTED;
    snprintf(key, sizeof key, "link%u", link);
    return ask_unsigned(device, key, up, 1);
}

int nvmlDeviceGetP2PStatus(device_t from, device_t to, int index, unsigned *status)
{
    (void)index;
    char key[32];
    snprintf(key, sizeof key, "p2p%d", to->index);
    return ask_unsigned(from, key, status, 0);
}

int nvmlDeviceGetFieldValues(device_t device, int count, field_t *fields)
{
    long long ignored = 0;
    int result = ask(device, "fields", &ignored);
    if (result)
        return result;
    for (int number = 0; number < count; number++) {
        field_t *field = &fields[number];
        char key[32], type[32];
        int is_margin = field->field == 194 || field->field == 196;
        long long value = field->field == 82 ? 40 : field->field == 194 ? -2 : 0;
        snprintf(key, sizeof key, "field%u", field->field);
        field->result = ask(device, key, &value);
        if (field->scope && !field->result) {
            snprintf(key, sizeof key, "field%u.%u", field->field, field->scope);
            field->result = ask(device, key, &value);
        }
        snprintf(type, sizeof type, "type%u", field->field);
        ask_unsigned(device, type, (unsigned *)&field->type, is_margin ? 5 : 3); /* signed int, unsigned long long */
        field->value.sll = value;
    }
    return SUCCESS;
}

int nvmlDeviceGetViolationStatus(device_t device, int policy, unsigned long long *time)
{
    long long value = 0;
    int result = ask(device, policy == 1 ? "thermal_time" : "limit_time", &value);
    time[0] = 0; /* the reference; the second is the violation */
    time[1] = (unsigned long long)value;
    return result;
}
