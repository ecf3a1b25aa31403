// A stand-in for cuRAND. Its numbers are others than cuRAND's.
#include "libraries.h"

#include <cmath>
#include <random>

struct Generator {
    std::mt19937_64 bits;
    void* stream = nullptr;
};
template <class T, class F> static int fill(void* generator, T* out, size_t n, F draw) {
    auto* g = (Generator*)generator;
    return in_order(g->stream, [=] { for (size_t i = 0; i < n; i++) out[i] = T(draw(g->bits)); }) ? 201 : 0;
}
static double uniform(std::mt19937_64& bits, int digits) { return (double(bits() >> (64 - digits)) + 1) / std::ldexp(1.0, digits); } // in (0, 1]
static double normal(std::mt19937_64& bits, double mean, double deviation) { return std::normal_distribution<double>(mean, deviation)(bits); }

extern "C" {
int curandGetVersion(int* version) {
    *version = 10310;
    return 0;
}
int curandCreateGenerator(void** g, int) {
    *g = new Generator;
    return 0;
}
int curandDestroyGenerator(void*) { return 0; } // queued work may need it
int curandSetStream(void* g, void* stream) {
    ((Generator*)g)->stream = stream;
    return 0;
}
int curandSetPseudoRandomGeneratorSeed(void* g, unsigned long long seed) {
    ((Generator*)g)->bits.seed(seed);
    return 0;
}
int curandSetGeneratorOffset(void* g, unsigned long long n) {
    ((Generator*)g)->bits.discard(n);
    return 0;
}
int curandSetGeneratorOrdering(void*, int) { return 0; }
int curandGenerate(void* g, uint32_t* out, size_t n) { return fill(g, out, n, [](auto& b) { return b() >> 32; }); }
int curandGenerateLongLong(void* g, uint64_t* out, size_t n) { return fill(g, out, n, [](auto& b) { return b(); }); }
int curandGenerateUniform(void* g, float* out, size_t n) { return fill(g, out, n, [](auto& b) { return uniform(b, 24); }); }
int curandGenerateUniformDouble(void* g, double* out, size_t n) { return fill(g, out, n, [](auto& b) { return uniform(b, 53); }); }
int curandGenerateNormal(void* g, float* out, size_t n, float m, float s) { return fill(g, out, n, [=](auto& b) { return normal(b, m, s); }); }
int curandGenerateNormalDouble(void* g, double* out, size_t n, double m, double s) { return fill(g, out, n, [=](auto& b) { return normal(b, m, s); }); }
int curandGenerateLogNormal(void* g, float* out, size_t n, float m, float s) { return fill(g, out, n, [=](auto& b) { return std::exp(normal(b, m, s)); }); }
int curandGenerateLogNormalDouble(void* g, double* out, size_t n, double m, double s) { return fill(g, out, n, [=](auto& b) { return std::exp(normal(b, m, s)); }); }
int curandGeneratePoisson(void* g, uint32_t* out, size_t n, double m) { return fill(g, out, n, [=](auto& b) { return std::poisson_distribution<uint32_t>(m)(b); }); }
}
