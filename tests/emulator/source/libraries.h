// What the stand-ins for NVIDIA's libraries share: numbers of CUDA's data types, and work in the order of a stream.
#pragma once
#include <complex>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>

extern "C" int emulated_submit(void* stream, void (*function)(void*), void* argument);

using Complex = std::complex<double>;
using SingleComplex = std::complex<float>;

// Returns 0 or a CUDA error. The work is kept, because a graph may run it again.
inline int in_order(void* stream, std::function<void()> work) {
    auto* held = new std::function<void()>(std::move(work));
    return emulated_submit(stream, [](void* f) { (*(std::function<void()>*)f)(); }, held);
}

enum DataType { F32 = 0, F64 = 1, F16 = 2, C64 = 4, C128 = 5, BF16 = 14 }; // cudaDataType
inline int bytes_of(int type) {
    switch (type) {
    case F32: return 4;
    case F16: case BF16: return 2;
    case F64: case C64: return 8;
    case C128: return 16;
    default: return 0;
    }
}
inline Complex number_at(const void* p, int64_t i, int type) {
    switch (type) {
    case F32: return ((const float*)p)[i];
    case F64: return ((const double*)p)[i];
    case F16: return double(((const _Float16*)p)[i]);
    case C64: return Complex(((const SingleComplex*)p)[i]);
    case C128: return ((const Complex*)p)[i];
    }
    uint32_t bits = uint32_t(((const uint16_t*)p)[i]) << 16;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}
inline void set_number(void* p, int64_t i, int type, Complex v) {
    switch (type) {
    case F32: ((float*)p)[i] = float(v.real()); return;
    case F64: ((double*)p)[i] = v.real(); return;
    case F16: ((_Float16*)p)[i] = _Float16(v.real()); return;
    case C64: ((SingleComplex*)p)[i] = SingleComplex(v); return;
    case C128: ((Complex*)p)[i] = v; return;
    }
    float x = float(v.real());
    uint32_t bits;
    memcpy(&bits, &x, 4);
    bits = x != x ? 0x7fff0000 : bits + 0x7fff + (bits >> 16 & 1);
    ((uint16_t*)p)[i] = uint16_t(bits >> 16);
}
