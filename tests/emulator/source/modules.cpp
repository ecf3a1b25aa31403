// The driver's calls: modules of PTX, their functions, and launches.
#include "device.h"
#include "ptx.h"

#include <cstdio>
#include <cstring>
#include <cuda.h>

using namespace device;
using Held = std::lock_guard<std::mutex>;

struct Loaded {
    std::unique_ptr<ptx::Module> module;
    int device;
};
struct Found {
    ptx::Kernel* kernel;
    int device;
};

template <class F> static CUresult guarded(F f) {
    try {
        Held held(lock);
        return CUresult(remember(f()));
    } catch (const ptx::Fault& fault) {
        fprintf(stderr, "EMULATED GPU: %s\n", fault.what());
        return CUresult(fault.code);
    } catch (const std::exception& error) {
        fprintf(stderr, "EMULATED GPU: %s\n", error.what());
        return CUDA_ERROR_INVALID_PTX;
    }
}

extern "C" {
CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
CUresult cuDriverGetVersion(int* version) {
    *version = 12090;
    return CUDA_SUCCESS;
}
CUresult cuGetErrorName(CUresult error, const char** text) {
    static thread_local char name[40];
    snprintf(name, sizeof name, "CUDA_ERROR_%d", int(error));
    *text = name;
    return CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult, const char** text) {
    *text = "an error of the emulated GPU";
    return CUDA_SUCCESS;
}
// A context is its device's number and 8.
CUresult cuCtxGetCurrent(CUcontext* context) {
    *context = CUcontext(uint64_t(current + 8));
    return CUDA_SUCCESS;
}
CUresult cuCtxSetCurrent(CUcontext context) {
    current = int(uint64_t(context)) - 8;
    return CUDA_SUCCESS;
}
CUresult cuCtxGetDevice(CUdevice* device) {
    *device = current;
    return CUDA_SUCCESS;
}
CUresult cuStreamGetCtx(CUstream, CUcontext* context) { return cuCtxGetCurrent(context); }
CUresult cuGetExportTable(const void** table, const CUuuid*) { // NVRTC asks for it, and goes on without
    *table = nullptr;
    return CUDA_ERROR_NOT_FOUND;
}

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
    return guarded([&] {
        if (*(const char*)image == 0x7f) throw ptx::Fault(CUDA_ERROR_INVALID_IMAGE, "a cubin; needed: PTX, by CUPY_COMPILE_WITH_PTX=1");
        *module = CUmodule(new Loaded{std::unique_ptr<ptx::Module>(ptx::load((const char*)image)), current});
        return 0;
    });
}
CUresult cuModuleUnload(CUmodule) { return CUDA_SUCCESS; } // queued launches may need it
CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
    return guarded([&] {
        auto& loaded = *(Loaded*)module;
        auto found = loaded.module->kernels.find(name);
        if (found == loaded.module->kernels.end()) return int(CUDA_ERROR_NOT_FOUND);
        ptx::parse(*loaded.module, found->second);
        *function = CUfunction(new Found{&found->second, loaded.device});
        return 0;
    });
}
CUresult cuModuleGetGlobal(CUdeviceptr* address, size_t* size, CUmodule module, const char* name) {
    auto& globals = ((Loaded*)module)->module->globals;
    auto found = globals.find(name);
    if (found == globals.end()) return CUDA_ERROR_NOT_FOUND;
    *address = CUdeviceptr(found->second.address);
    *size = found->second.size;
    return CUDA_SUCCESS;
}
CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction function) {
    auto& k = *((Found*)function)->kernel;
    *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024
             : attribute == CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES ? k.shared_bytes
             : attribute == CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES ? k.local_bytes
             : attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES ? k.most_dynamic_bytes : 0;
    return CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
    auto& k = *((Found*)function)->kernel;
    if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) return CUDA_SUCCESS;
    if (value + k.shared_bytes > ptx::MOST_SHARED_BYTES) return CUDA_ERROR_INVALID_VALUE;
    k.most_dynamic_bytes = value;
    return CUDA_SUCCESS;
}
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction, int, size_t) {
    *blocks = 2;
    return CUDA_SUCCESS;
}
CUresult cuOccupancyMaxPotentialBlockSize(int* grid, int* block, CUfunction, CUoccupancyB2DSize, size_t, int) {
    *grid = 132;
    *block = 256;
    return CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                        unsigned dynamic_bytes, CUstream stream, void** arguments, void**) {
    return guarded([&] {
        auto [kernel, of_device] = *(Found*)function;
        if (of_device != current) return int(CUDA_ERROR_INVALID_HANDLE);
        bool is_too_much = int(dynamic_bytes) + kernel->shared_bytes > (48 << 10) && int(dynamic_bytes) > kernel->most_dynamic_bytes;
        bool has_size = gx && gy && gz && bx && by && bz && bx * by * bz <= 1024 && bz <= 64 && gy < 65536 && gz < 65536;
        if (is_too_much || !has_size) return int(CUDA_ERROR_INVALID_VALUE);
        std::vector<uint8_t> values(kernel->parameter_bytes + 16);
        for (size_t i = 0; i < kernel->parameters.size(); i++) memcpy(&values[kernel->parameters[i].offset], arguments[i], kernel->parameters[i].size);
        return submit(stream, [=] {
            unsigned grid[] = {gx, gy, gz}, block[] = {bx, by, bz};
            ptx::launch(*kernel, grid, block, dynamic_bytes, values.data());
        });
    });
}
}
