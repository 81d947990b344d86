// SPDX-License-Identifier: Apache-2.0
// A library in NVML's place, for machines without a driver: two GPUs. FAKE_NVML says what goes wrong:
//   start   nvmlInit_v2 fails
//   count   GPUs cannot be counted
//   lost    the second GPU is lost: every question about it fails
//   old     no throttle reasons, utilization or power limit: a device that does not support them
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace {

constexpr int success = 0, uninitialized = 1, invalid_argument = 2, not_supported = 3, driver_not_loaded = 9, lost = 15;

struct Pci {
  char bus_id_legacy[16];
  unsigned int domain, bus, device, device_id, subsystem_id;
  char bus_id[32];
};
struct Utilization {
  unsigned int gpu, memory;
};
struct Memory {
  unsigned long long total, free, used;
};
struct Device {
  const char* name;
  const char* bus_id;
  Utilization utilization;
  Memory memory;
  unsigned int clocks[4], max_clocks[4];  // graphics, SM, memory, video
  unsigned long long reasons;
  unsigned int temperature, power, power_limit;
};

constexpr unsigned long long gib = 1ull << 30;
Device devices[2] = {{"NVIDIA H100 80GB HBM3",
                      "00000000:3B:00.0",
                      {97, 41},
                      {80 * gib, 20 * gib, 60 * gib},
                      {1400, 1410, 2619, 1000},
                      {1980, 1981, 2620, 1500},
                      0x4 | 0x20,
                      71,
                      699500,
                      700000},
                     {"NVIDIA L4",
                      "00000000:5C:00.0",
                      {0, 0},
                      {24 * gib, 23 * gib, 1 * gib},
                      {210, 211, 405, 200},
                      {2040, 2041, 6251, 1500},
                      0x1,
                      35,
                      12250,
                      72000}};
int users = 0;

bool wrong(std::string_view what) {
  const char* set = std::getenv("FAKE_NVML");
  return set != nullptr && set == what;
}

int check(const void* device) {
  if (users == 0) return uninitialized;
  return device == &devices[1] && wrong("lost") ? lost : success;
}

template <class T>
int answer(const void* device, T value, T* result) {
  const int error = check(device);
  if (error == success) *result = value;
  return error;
}

Device& of(void* device) { return *static_cast<Device*>(device); }

}  // namespace

extern "C" {

int nvmlInit_v2() {
  if (wrong("start")) return driver_not_loaded;
  ++users;
  return success;
}
int nvmlShutdown() {
  --users;
  return success;
}
/// For tests: 0 when everybody has let go.
int fake_nvml_users() { return users; }

const char* nvmlErrorString(int error) {
  return error == lost ? "GPU is lost" : error == invalid_argument ? "Invalid Argument" : "Unknown Error";
}
int nvmlSystemGetDriverVersion(char* text, unsigned int length) {
  std::strncpy(text, "580.65.06", length);
  return check(nullptr);
}
int nvmlDeviceGetCount_v2(unsigned int* count) { return wrong("count") ? lost : answer(nullptr, 2u, count); }
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void** device) {
  if (index >= 2) return invalid_argument;
  return answer(nullptr, static_cast<void*>(&devices[index]), device);
}
int nvmlDeviceGetName(void* device, char* text, unsigned int length) {
  if (check(device) == success) std::strncpy(text, of(device).name, length);
  return check(device);
}
int nvmlDeviceGetPciInfo_v3(void* device, Pci* pci) {
  if (check(device) == success) std::strncpy(pci->bus_id, of(device).bus_id, sizeof pci->bus_id);
  return check(device);
}
int nvmlDeviceGetUtilizationRates(void* device, Utilization* result) {
  return wrong("old") ? not_supported : answer(device, of(device).utilization, result);
}
int nvmlDeviceGetMemoryInfo(void* device, Memory* result) { return answer(device, of(device).memory, result); }
int nvmlDeviceGetClockInfo(void* device, unsigned int type, unsigned int* mhz) {
  return type < 4 ? answer(device, of(device).clocks[type], mhz) : invalid_argument;
}
int nvmlDeviceGetMaxClockInfo(void* device, unsigned int type, unsigned int* mhz) {
  return type < 4 ? answer(device, of(device).max_clocks[type], mhz) : invalid_argument;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void* device, unsigned long long* reasons) {
  return wrong("old") ? not_supported : answer(device, of(device).reasons, reasons);
}
int nvmlDeviceGetTemperature(void* device, unsigned int sensor, unsigned int* celsius) {
  return sensor == 0 ? answer(device, of(device).temperature, celsius) : invalid_argument;
}
int nvmlDeviceGetPowerUsage(void* device, unsigned int* milliwatts) {
  return answer(device, of(device).power, milliwatts);
}
int nvmlDeviceGetEnforcedPowerLimit(void* device, unsigned int* milliwatts) {
  return wrong("old") ? not_supported : answer(device, of(device).power_limit, milliwatts);
}

}  // extern "C"
