// A stand-in for cuSOLVER: LAPACK of the host, by the library in EMULATED_LAPACK (that of SciPy's wheel).
#include "libraries.h"

#include <cstdlib>
#include <dlfcn.h>
#include <string>
#include <vector>

enum Status { OK = 0, EXECUTION_FAILED = 6, NOT_SUPPORTED = 9 };

struct Handle {
    void* stream = nullptr;
};
static int queued(void* handle, std::function<void()> work) { return in_order(((Handle*)handle)->stream, std::move(work)) ? EXECUTION_FAILED : OK; }

// A function of LAPACK, which takes addresses: routine("dpotrf")(&uplo, &n, a, &lda, &info).
template <class... A> static void lapack(const std::string& name, A... arguments) {
    static void* library = dlopen(getenv("EMULATED_LAPACK"), RTLD_NOW | RTLD_LOCAL);
    void* found = library ? dlsym(library, ("scipy_" + name + "_").c_str()) : nullptr;
    if (!found) throw std::runtime_error("LAPACK has no " + name);
    ((void (*)(A..., ...))found)(arguments...);
}

static int type_of(char letter) { return letter == 's' ? F32 : letter == 'd' ? F64 : letter == 'c' ? C64 : C128; }
static bool is_complex(char letter) { return letter == 'c' || letter == 'z'; }
static std::string named(char letter, const char* real, const char* complex) { return std::string(1, letter) + (is_complex(letter) ? complex : real); }
static std::string named(char letter, const char* name) { return named(letter, name, name); }
static char triangle(int fill) { return fill ? 'U' : 'L'; } // cublasFillMode_t
static char vectors(int mode) { return mode ? 'V' : 'N'; }  // cusolverEigMode_t

struct Work { // what LAPACK needs besides, of at least as many bytes as it can ask for
    std::vector<char> bytes, reals;
    int count;
    Work(int m, int n) : bytes(size_t(std::max(m, n) + 32) * 64 * 16), reals(size_t(std::max(m, n) + 8) * 64 * 8), count(int(bytes.size() / 16)) {}
};

static void potrf(char t, int fill, int n, void* a, int lda, int* info) {
    char u = triangle(fill);
    lapack(named(t, "potrf"), &u, &n, a, &lda, info);
}
static void eigen(char t, int mode, int fill, int n, void* a, int lda, void* w, int* info) {
    char v = vectors(mode), u = triangle(fill);
    Work work(n, n);
    if (is_complex(t)) lapack(named(t, "heev"), &v, &u, &n, a, &lda, w, work.bytes.data(), &work.count, work.reals.data(), info);
    else lapack(named(t, "syev"), &v, &u, &n, a, &lda, w, work.bytes.data(), &work.count, info);
}
static void svd(char t, char u, char v, int m, int n, void* a, int lda, void* s, void* left, int ldu, void* right, int ldv, int* info) {
    Work work(m, n);
    if (is_complex(t)) lapack(named(t, "gesvd"), &u, &v, &m, &n, a, &lda, s, left, &ldu, right, &ldv, work.bytes.data(), &work.count, work.reals.data(), info);
    else lapack(named(t, "gesvd"), &u, &v, &m, &n, a, &lda, s, left, &ldu, right, &ldv, work.bytes.data(), &work.count, info);
}
// Jacobi's method gives V where the others give its conjugate transpose; `is_thin`: as many columns as singular values.
static void svd_of_jacobi(char t, int mode, bool is_thin, int m, int n, void* a, int lda, void* s, void* left, int ldu, void* right, int ldv, int* info) {
    int type = type_of(t), rows = is_thin ? std::min(m, n) : n;
    std::vector<char> conjugate(size_t(n) * n * bytes_of(type));
    char job = !mode ? 'N' : is_thin ? 'S' : 'A';
    svd(t, job, job, m, n, a, lda, s, left, ldu, conjugate.data(), std::max(rows, 1), info);
    for (int i = 0; mode && i < n; i++)
        for (int j = 0; j < rows; j++) set_number(right, int64_t(j) * ldv + i, type, std::conj(number_at(conjugate.data(), int64_t(i) * rows + j, type)));
}

extern "C" {
int cusolverDnCreate(void** handle) {
    *handle = new Handle;
    return OK;
}
int cusolverDnDestroy(void* handle) {
    delete (Handle*)handle;
    return OK;
}
int cusolverDnSetStream(void* handle, void* stream) {
    ((Handle*)handle)->stream = stream;
    return OK;
}
int cusolverDnGetStream(void* handle, void** stream) {
    *stream = ((Handle*)handle)->stream;
    return OK;
}
int cusolverGetProperty(int which, int* value) {
    *value = which ? 7 : 11;
    return OK;
}
int cusolverDnCreateParams(void** parameters) {
    *parameters = (void*)16;
    return OK;
}
int cusolverDnDestroyParams(void*) { return OK; }
int cusolverDnCreateSyevjInfo(void** parameters) { return cusolverDnCreateParams(parameters); }
int cusolverDnDestroySyevjInfo(void*) { return OK; }
int cusolverDnCreateGesvdjInfo(void** parameters) { return cusolverDnCreateParams(parameters); }
int cusolverDnDestroyGesvdjInfo(void*) { return OK; }

int cusolverDnXsyevd_bufferSize(void*, void*, int, int, int64_t, int, const void*, int64_t, int, const void*, int, size_t* of_device, size_t* of_host) {
    *of_device = *of_host = 16;
    return OK;
}
int cusolverDnXsyevd(void* h, void*, int mode, int fill, int64_t n, int type, void* a, int64_t lda, int, void* w, int, void*, size_t, void*, size_t, int* info) {
    char t = type == F32 ? 's' : type == F64 ? 'd' : type == C64 ? 'c' : 'z';
    return queued(h, [=] { eigen(t, mode, fill, int(n), a, int(lda), w, info); });
}

int cusolverDnXgeev_bufferSize(void*, void*, int, int, int64_t, int, const void*, int64_t, int, const void*, int, const void*, int64_t, int, const void*, int64_t, int, size_t* of_device, size_t* of_host) {
    *of_device = *of_host = 16;
    return OK;
}
int cusolverDnXgeev(void* h, void*, int left, int right, int64_t n, int type, void* a, int64_t lda, int, void* w, int, void* vl, int64_t ldvl, int, void* vr, int64_t ldvr, int, void*, size_t, void*, size_t, int* info) {
    return queued(h, [=] {
        char t = type == F32 ? 's' : type == F64 ? 'd' : type == C64 ? 'c' : 'z', l = vectors(left), r = vectors(right);
        int count = int(n), ld = int(lda), ldl = int(ldvl), ldr = int(ldvr);
        Work work(count, count);
        if (is_complex(t)) return lapack(named(t, "geev"), &l, &r, &count, a, &ld, w, vl, &ldl, vr, &ldr, work.bytes.data(), &work.count, work.reals.data(), info);
        std::vector<char> real(n * 8), imaginary(n * 8);
        lapack(named(t, "geev"), &l, &r, &count, a, &ld, real.data(), imaginary.data(), vl, &ldl, vr, &ldr, work.bytes.data(), &work.count, info);
        for (int i = 0; i < count; i++) set_number(w, i, type == F32 ? C64 : C128, {number_at(real.data(), i, type).real(), number_at(imaginary.data(), i, type).real()});
    });
}

// The functions of one type. Work memory of the device is not used: its size is 1.
#define SIZE(NAME, ...)                                                      \
    int cusolverDn##NAME##_bufferSize(__VA_ARGS__, int* count) {             \
        *count = 1;                                                          \
        return OK;                                                           \
    }
#define SIZE_AND_INFO(NAME, ...)                                             \
    int cusolverDn##NAME##_bufferSize(__VA_ARGS__, int* count, void*) {      \
        *count = 1;                                                          \
        return OK;                                                           \
    }
#define SIZE_AND_BATCH(NAME, ...)                                            \
    int cusolverDn##NAME##_bufferSize(__VA_ARGS__, int* count, void*, int) { \
        *count = 1;                                                          \
        return OK;                                                           \
    }
#define OF_TYPE(L, t, ORGQR, SYEV, size)                                                                             \
    SIZE(L##potrf, void*, int, int, void*, int)                                                                              \
    int cusolverDn##L##potrf(void* h, int fill, int n, void* a, int lda, void*, int, int* info) {                            \
        return queued(h, [=] { potrf(t, fill, n, a, lda, info); });                                                          \
    }                                                                                                                        \
    int cusolverDn##L##potrfBatched(void* h, int fill, int n, void** a, int lda, int* info, int batch) {                     \
        return queued(h, [=] { for (int q = 0; q < batch; q++) potrf(t, fill, n, a[q], lda, info + q); });                   \
    }                                                                                                                        \
    SIZE(L##getrf, void*, int, int, void*, int)                                                                              \
    int cusolverDn##L##getrf(void* h, int m, int n, void* a, int lda, void*, int* pivots, int* info) {                       \
        return queued(h, [=] { int rows = m, columns = n, ld = lda; lapack(named(t, "getrf"), &rows, &columns, a, &ld, pivots, info); }); \
    }                                                                                                                        \
    int cusolverDn##L##getrs(void* h, int op, int n, int columns, const void* a, int lda, const int* pivots, void* b, int ldb, int* info) { \
        return queued(h, [=] {                                                                                               \
            char o = "NTC"[op];                                                                                              \
            int n_ = n, c = columns, la = lda, lb = ldb;                                                                     \
            lapack(named(t, "getrs"), &o, &n_, &c, a, &la, pivots, b, &lb, info);                                            \
        });                                                                                                                  \
    }                                                                                                                        \
    SIZE(L##geqrf, void*, int, int, void*, int)                                                                              \
    int cusolverDn##L##geqrf(void* h, int m, int n, void* a, int lda, void* tau, void*, int, int* info) {                    \
        return queued(h, [=] {                                                                                               \
            int rows = m, columns = n, ld = lda;                                                                             \
            Work work(m, n);                                                                                                 \
            lapack(named(t, "geqrf"), &rows, &columns, a, &ld, tau, work.bytes.data(), &work.count, info);                   \
        });                                                                                                                  \
    }                                                                                                                        \
    SIZE(L##ORGQR, void*, int, int, int, const void*, int, const void*)                                                      \
    int cusolverDn##L##ORGQR(void* h, int m, int n, int k, void* a, int lda, const void* tau, void*, int, int* info) {       \
        return queued(h, [=] {                                                                                               \
            int rows = m, columns = n, reflectors = k, ld = lda;                                                             \
            Work work(m, n);                                                                                                 \
            lapack(named(t, "orgqr", "ungqr"), &rows, &columns, &reflectors, a, &ld, tau, work.bytes.data(), &work.count, info); \
        });                                                                                                                  \
    }                                                                                                                        \
    SIZE(L##gesvd, void*, int, int)                                                                                          \
    int cusolverDn##L##gesvd(void* h, signed char u, signed char v, int m, int n, void* a, int lda, void* s, void* left, int ldu, void* right, int ldv, void*, int, void*, int* info) { \
        return queued(h, [=] { svd(t, u, v, m, n, a, lda, s, left, ldu, right, ldv, info); });                               \
    }                                                                                                                        \
    SIZE_AND_INFO(L##gesvdj, void*, int, int, int, int, const void*, int, const void*, const void*, int, const void*, int)   \
    int cusolverDn##L##gesvdj(void* h, int mode, int thin, int m, int n, void* a, int lda, void* s, void* left, int ldu, void* right, int ldv, void*, int, int* info, void*) { \
        return queued(h, [=] { svd_of_jacobi(t, mode, thin, m, n, a, lda, s, left, ldu, right, ldv, info); });               \
    }                                                                                                                        \
    SIZE_AND_BATCH(L##gesvdjBatched, void*, int, int, int, const void*, int, const void*, const void*, int, const void*, int) \
    int cusolverDn##L##gesvdjBatched(void* h, int mode, int m, int n, void* a, int lda, void* s, void* left, int ldu, void* right, int ldv, void*, int, int* info, void*, int batch) { \
        return queued(h, [=] {                                                                                               \
            int least = std::min(m, n);                                                                                      \
            auto part = [&](void* x, int64_t each, int q) { return (char*)x + q * each * size; };                            \
            for (int q = 0; q < batch; q++)                                                                                  \
                svd_of_jacobi(t, mode, false, m, n, part(a, int64_t(lda) * n, q), lda, (char*)s + int64_t(q) * least * (is_complex(t) ? size / 2 : size), \
                              part(left, int64_t(ldu) * m, q), ldu, part(right, int64_t(ldv) * n, q), ldv, info + q);        \
        });                                                                                                                  \
    }                                                                                                                        \
    SIZE(L##SYEV##d, void*, int, int, int, const void*, int, const void*)                                                      \
    int cusolverDn##L##SYEV##d(void* h, int mode, int fill, int n, void* a, int lda, void* w, void*, int, int* info) {         \
        return queued(h, [=] { eigen(t, mode, fill, n, a, lda, w, info); });                                                 \
    }                                                                                                                        \
    SIZE_AND_INFO(L##SYEV##j, void*, int, int, int, const void*, int, const void*)                                             \
    int cusolverDn##L##SYEV##j(void* h, int mode, int fill, int n, void* a, int lda, void* w, void*, int, int* info, void*) {  \
        return queued(h, [=] { eigen(t, mode, fill, n, a, lda, w, info); });                                                 \
    }                                                                                                                        \
    SIZE_AND_BATCH(L##SYEV##jBatched, void*, int, int, int, const void*, int, const void*)                                     \
    int cusolverDn##L##SYEV##jBatched(void* h, int mode, int fill, int n, void* a, int lda, void* w, void*, int, int* info, void*, int batch) { \
        return queued(h, [=] {                                                                                               \
            for (int q = 0; q < batch; q++)                                                                                  \
                eigen(t, mode, fill, n, (char*)a + int64_t(q) * lda * n * size, lda, (char*)w + int64_t(q) * n * (is_complex(t) ? size / 2 : size), info + q); \
        });                                                                                                                  \
    }
OF_TYPE(S, 's', orgqr, syev, 4)
OF_TYPE(D, 'd', orgqr, syev, 8)
OF_TYPE(C, 'c', ungqr, heev, 8)
OF_TYPE(Z, 'z', ungqr, heev, 16)
}
