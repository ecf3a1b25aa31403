// Devices, their memory, copies, and memory that other processes open.
#include "device.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <map>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#undef cudaGetDeviceProperties

namespace device {

constexpr size_t PAGE = 4096, TOTAL = size_t(8) << 30, FILLED = size_t(64) << 20;

struct Allocation { // between pages without access
    size_t size, asked; // the rest of its last page is not written by anybody
    int device;
    int file = -1;           // of memory that other processes can open; its last page counts how many have
    bool is_opened = false;  // another process's
};
static auto& allocations = *new std::map<char*, Allocation>; // never destroyed, as in streams.cpp
static auto& pinned = *new std::map<char*, size_t>;
static size_t used[64];
static int accessible = -1; // the device whose memory is; -1: of all

int count() {
    static const int n = getenv("EMULATED_GPUS") ? atoi(getenv("EMULATED_GPUS")) : 4;
    return n;
}

template <class T> static auto containing(T& all, const void* address) {
    auto found = all.upper_bound((char*)address);
    return found == all.begin() ? all.end() : std::prev(found);
}
static auto allocation_of(const void* address) {
    auto found = containing(allocations, address);
    return found != allocations.end() && (char*)address < found->first + found->second.size ? found : allocations.end();
}

Kind kind_of(const void* address, int* of_device) {
    auto found = allocation_of(address);
    if (found != allocations.end()) {
        if (of_device) *of_device = found->second.device;
        return Kind::device;
    }
    auto host = containing(pinned, address);
    return host != pinned.end() && (char*)address < host->first + host->second ? Kind::pinned : Kind::other;
}

// Work of a device that reads another's memory is stopped, as it is between devices without peer access.
void let_access(int of_device) {
    if (of_device == accessible || count() == 1) return;
    for (auto& [address, a] : allocations) mprotect(address, a.size, of_device < 0 || a.device == of_device ? PROT_READ | PROT_WRITE : PROT_NONE);
    accessible = of_device;
}

static int allocate(void** address, size_t asked) {
    size_t size = (asked + PAGE - 1) / PAGE * PAGE;
    if (used[current] + size > TOTAL) return cudaErrorMemoryAllocation;
    let_access(-1);
    char* at = (char*)mmap(nullptr, size + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    mprotect(at + PAGE, size, PROT_READ | PROT_WRITE);
    if (size < FILLED) memset(at + PAGE, 0xcd, size); // what is read before it is written shows
    allocations[at + PAGE] = {size, asked, current};
    used[current] += size;
    *address = at + PAGE;
    return 0;
}

static int* openings(int file, size_t size) { // how many processes have opened the memory
    return (int*)mmap(nullptr, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, off_t(size));
}

static int release(void* address) {
    if (!address) return 0;
    auto found = allocations.find((char*)address);
    if (found == allocations.end() || found->second.is_opened) return cudaErrorInvalidValue;
    int error = finish_all();
    let_access(-1);
    auto [at, a] = *found;
    for (char* p = at + a.asked; a.size < FILLED && p < at + a.size; p++)
        if (*p != char(0xcd)) {
            fprintf(stderr, "EMULATED GPU: %ld bytes behind an allocation of %zu bytes there was written\n", long(p - at - a.asked) + 1, a.asked);
            fail(cudaErrorIllegalAddress);
            break;
        }
    if (a.file >= 0) {
        int* open = openings(a.file, a.size);
        if (*open) {
            fprintf(stderr, "EMULATED GPU: memory is freed that %d other processes have open\n", *open);
            memset(at, 0xcd, a.size); // they see it, too
        }
        munmap(open, PAGE);
        close(a.file);
    }
    munmap(at - PAGE, a.size + 2 * PAGE);
    used[a.device] -= a.size;
    allocations.erase(found);
    return error;
}

// Copies with page-locked memory are as late as other work. Other memory of the host is read before the call returns, and
// is written before it.
static int copy(void* to, const void* from, size_t size, void* stream, bool waits) {
    if (!size) return 0;
    Kind of_to = kind_of(to), of_from = kind_of(from);
    bool captures = is_capturing(stream);
    int error;
    if (of_from == Kind::other && !captures) {
        auto held = std::make_shared<std::string>((const char*)from, size);
        error = submit(stream, [=] { memcpy(to, held->data(), size); }, true);
    } else {
        error = submit(stream, [=] { memmove(to, from, size); }, true);
    }
    bool is_late = of_to != Kind::other && !(waits && (of_to == Kind::pinned || of_from != Kind::device));
    return error || captures || is_late ? error : finish_stream(stream);
}

} // namespace device

using namespace device;
using Held = std::lock_guard<std::mutex>;
#define RETURN(x) return cudaError_t(remember(x))

extern "C" {
// -- devices ---------------------------------------------------------------------------------------------------------
cudaError_t cudaGetDeviceCount(int* n) {
    *n = count();
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
    *device = current;
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
    if (device < 0 || device >= count()) RETURN(cudaErrorInvalidDevice);
    current = device;
    return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
    *version = 12090;
    return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) { return cudaDriverGetVersion(version); }
const char* cudaGetErrorName(cudaError_t error) {
    static thread_local char text[40];
    snprintf(text, sizeof text, "cudaError%d", int(error));
    return text;
}
const char* cudaGetErrorString(cudaError_t error) {
    switch (int(error)) {
    case 2: return "out of memory";
    case 101: return "invalid device ordinal";
    case 400: return "invalid resource handle";
    case 700: return "an illegal memory access was encountered";
    case 716: return "misaligned address";
    case 719: return "unspecified launch failure";
    case 900: return "operation not permitted when stream is capturing";
    default: return "an error of the emulated GPU";
    }
}
cudaError_t cudaDeviceGetPCIBusId(char* id, int size, int device) {
    snprintf(id, size, "0000:%02x:00.0", device);
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
    switch (int(attribute)) {
    case cudaDevAttrComputeCapabilityMajor: *value = 9; break;
    case cudaDevAttrComputeCapabilityMinor: *value = 0; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = 227 << 10; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = 48 << 10; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrMultiProcessorCount: *value = 132; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = 2048; break;
    case cudaDevAttrMemoryPoolsSupported: *value = 0; break;
    default: *value = 1024;
    }
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties_v2(cudaDeviceProp* p, int) {
    *p = {};
    strcpy(p->name, "emulated GPU");
    p->totalGlobalMem = TOTAL;
    p->major = 9;
    p->multiProcessorCount = 132;
    p->warpSize = 32;
    p->maxThreadsPerBlock = 1024;
    p->sharedMemPerBlock = 48 << 10;
    return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
    *can = 0;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetLimit(size_t* value, cudaLimit) {
    *value = 0;
    return cudaSuccess;
}
cudaError_t cudaDeviceSetLimit(cudaLimit, size_t) { return cudaSuccess; }

// -- memory ----------------------------------------------------------------------------------------------------------
cudaError_t cudaMalloc(void** address, size_t size) {
    Held held(lock);
    RETURN(allocate(address, size));
}
cudaError_t cudaMallocAsync(void** address, size_t size, cudaStream_t) { return cudaMalloc(address, size); }
cudaError_t cudaFree(void* address) { // waits for all work
    Held held(lock);
    RETURN(release(address));
}
cudaError_t cudaFreeAsync(void* address, cudaStream_t) { return cudaFree(address); }
cudaError_t cudaHostAlloc(void** address, size_t size, unsigned) {
    Held held(lock);
    size = (size + PAGE - 1) / PAGE * PAGE;
    *address = aligned_alloc(PAGE, size);
    memset(*address, 0xcd, size);
    pinned[(char*)*address] = size;
    return cudaSuccess;
}
cudaError_t cudaFreeHost(void* address) {
    Held held(lock);
    int error = finish_all();
    pinned.erase((char*)address);
    free(address);
    RETURN(error);
}
cudaError_t cudaHostRegister(void* address, size_t size, unsigned) {
    Held held(lock);
    pinned[(char*)address] = size;
    return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* address) {
    Held held(lock);
    pinned.erase((char*)address);
    return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
    *total = TOTAL;
    *free = TOTAL - used[current];
    return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* found, const void* address) {
    Held held(lock);
    *found = {};
    Kind kind = kind_of(address, &found->device);
    found->type = kind == Kind::device ? cudaMemoryTypeDevice : kind == Kind::pinned ? cudaMemoryTypeHost : cudaMemoryTypeUnregistered;
    found->devicePointer = kind == Kind::other ? nullptr : (void*)address;
    found->hostPointer = kind == Kind::device ? nullptr : (void*)address;
    return cudaSuccess;
}

// -- copies ----------------------------------------------------------------------------------------------------------
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, cudaMemcpyKind, cudaStream_t stream) {
    Held held(lock);
    RETURN(copy(to, from, size, stream, false));
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t size, cudaMemcpyKind) {
    Held held(lock);
    RETURN(copy(to, from, size, nullptr, true));
}
cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t size, cudaStream_t stream) {
    Held held(lock);
    RETURN(copy(to, from, size, stream, false));
}
cudaError_t cudaMemcpyPeer(void* to, int, const void* from, int, size_t size) { // after the work of both devices
    Held held(lock);
    int error = finish_all();
    RETURN(error ? error : copy(to, from, size, nullptr, true));
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t size, cudaStream_t stream) {
    Held held(lock);
    RETURN(submit(stream, [=] { memset(to, value, size); }));
}
cudaError_t cudaMemset(void* to, int value, size_t size) { return cudaMemsetAsync(to, value, size, nullptr); }

// -- memory that other processes open ----------------------------------------------------------------------------------
struct Handle {
    int process, file, device;
    size_t size;
};
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* address) {
    Held held(lock);
    auto found = allocations.find((char*)address); // a handle names a whole allocation
    if (found == allocations.end() || found->second.is_opened) RETURN(cudaErrorInvalidValue);
    auto& [at, a] = *found;
    if (a.file < 0) { // the same addresses, now of a file in memory
        int error = finish_all();
        if (error) RETURN(error);
        let_access(-1);
        a.file = memfd_create("emulated GPU", MFD_CLOEXEC);
        if (ftruncate(a.file, off_t(a.size + PAGE)) || pwrite(a.file, at, a.size, 0) != ssize_t(a.size)) RETURN(cudaErrorMemoryAllocation);
        mmap(at, a.size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, a.file, 0);
    }
    *handle = {};
    Handle made{getpid(), a.file, a.device, a.size};
    memcpy(handle, &made, sizeof made);
    return cudaSuccess;
}
cudaError_t cudaIpcOpenMemHandle(void** address, cudaIpcMemHandle_t handle, unsigned) {
    Held held(lock);
    Handle given;
    memcpy(&given, &handle, sizeof given);
    if (given.process == getpid()) RETURN(cudaErrorDeviceUninitialized); // as CUDA does
    int file = open(("/proc/" + std::to_string(given.process) + "/fd/" + std::to_string(given.file)).c_str(), O_RDWR | O_CLOEXEC);
    if (file < 0) RETURN(cudaErrorMapBufferObjectFailed);
    char* at = (char*)mmap(nullptr, given.size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    int* open = openings(file, given.size);
    __sync_fetch_and_add(open, 1);
    munmap(open, PAGE);
    let_access(-1);
    allocations[at] = {given.size, given.size, current, file, true}; // GPUs of one host access each other through it
    *address = at;
    keep_going();
    return cudaSuccess;
}
cudaError_t cudaIpcCloseMemHandle(void* address) {
    Held held(lock);
    auto found = allocations.find((char*)address);
    if (found == allocations.end() || !found->second.is_opened) RETURN(cudaErrorInvalidValue);
    int error = finish_all();
    auto& a = found->second;
    int* open = openings(a.file, a.size);
    __sync_fetch_and_sub(open, 1);
    munmap(open, PAGE);
    munmap(address, a.size);
    close(a.file);
    allocations.erase(found);
    RETURN(error);
}
}
