// A stand-in for cuBLAS: products of matrices, and systems of equations, in double precision, rounded once.
#include "libraries.h"

#include <cmath>
#include <memory>
#include <vector>

enum Status { OK = 0, INVALID_VALUE = 7, EXECUTION_FAILED = 13, NOT_SUPPORTED = 15 };

struct Handle {
    void* stream = nullptr;
    int pointer_mode = 0, math_mode = 0; // scalars and results of the host, or of the device
};
static Handle& of(void* handle) { return *(Handle*)handle; }
static int queued(void* handle, std::function<void()> work) { return in_order(of(handle).stream, std::move(work)) ? EXECUTION_FAILED : OK; }

// A scalar of the host is read now, one of the device when the work is done.
static std::function<Complex()> scalar(void* handle, const void* p, int type) {
    if (of(handle).pointer_mode) return [=] { return number_at(p, 0, type); };
    Complex now = number_at(p, 0, type);
    return [=] { return now; };
}

struct Matrices { // by columns
    const void* at;
    int type, leading;
    int64_t step = 0;           // from one to the next
    bool are_listed = false;    // by pointers
    char* of_batch(int q) const { return are_listed ? ((char* const*)at)[q] : (char*)at + q * step * bytes_of(type); }
};

template <class T> static T as(Complex v) {
    if constexpr (std::is_same_v<T, double>) return v.real();
    else return v;
}
// op(x) as rows times columns numbers, by rows. 0: itself, 1: transposed, 2: transposed and conjugated.
template <class T> static std::vector<T> taken(const Matrices& x, int q, int op, int rows, int columns) {
    std::vector<T> y(size_t(rows) * columns);
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < columns; j++) {
            Complex v = number_at(x.of_batch(q), op ? int64_t(i) * x.leading + j : int64_t(j) * x.leading + i, x.type);
            y[size_t(i) * columns + j] = as<T>(op == 2 ? std::conj(v) : v);
        }
    return y;
}
template <class T>
static void multiply(int op_a, int op_b, int m, int n, int k, Complex alpha, Matrices a, Matrices b, Complex beta, Matrices c, int batch) {
    for (int q = 0; q < batch; q++) {
        std::vector<T> x = taken<T>(a, q, op_a, m, k), y = taken<T>(b, q, op_b, k, n), row(n);
        for (int i = 0; i < m; i++) {
            std::fill(row.begin(), row.end(), T(0));
            for (int d = 0; d < k; d++)
                for (int j = 0; j < n; j++) row[j] += x[size_t(i) * k + d] * y[size_t(d) * n + j];
            for (int j = 0; j < n; j++) {
                int64_t at = int64_t(j) * c.leading + i;
                Complex before = beta == 0.0 ? 0.0 : beta * number_at(c.of_batch(q), at, c.type); // it may be NaN
                set_number(c.of_batch(q), at, c.type, alpha * Complex(row[j]) + before);
            }
        }
    }
}
static int gemm(void* handle, int op_a, int op_b, int m, int n, int k, const void* alpha, Matrices a, Matrices b, const void* beta, Matrices c, int batch, int scalars) {
    if (!bytes_of(a.type) || !bytes_of(b.type) || !bytes_of(c.type)) return NOT_SUPPORTED;
    bool fits = m >= 0 && n >= 0 && k >= 0 && batch >= 0 && a.leading >= std::max(1, op_a ? k : m) && b.leading >= std::max(1, op_b ? n : k) && c.leading >= std::max(1, m);
    if (!fits) {
        fprintf(stderr, "EMULATED cuBLAS: refused: %d x %d x %d, leading dimensions %d, %d, %d\n", m, n, k, a.leading, b.leading, c.leading);
        return INVALID_VALUE;
    }
    auto al = scalar(handle, alpha, scalars), be = scalar(handle, beta, scalars);
    bool is_complex = a.type == C64 || a.type == C128;
    return queued(handle, [=] { (is_complex ? multiply<Complex> : multiply<double>)(op_a, op_b, m, n, k, al(), a, b, be(), c, batch); });
}
// The type of the scalars of a cublasComputeType_t: 64 and 65 are float16, 70 and 71 float64, others float32.
static int scalars_of(int compute, int type) {
    if (type == C64 || type == C128) return type;
    return compute == 70 || compute == 71 ? F64 : compute == 64 || compute == 65 ? F16 : F32;
}

// Systems of equations: LU decompositions with partial pivots (counted from 1), in place.
static int decompose(void* x, int type, int n, int leading, int* pivots) { // returns the first zero of the diagonal, from 1
    int zero = 0;
    auto at = [&](int i, int j) { return int64_t(j) * leading + i; };
    std::vector<Complex> a(size_t(n) * n);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) a[size_t(i) * n + j] = number_at(x, at(i, j), type);
    for (int k = 0; k < n; k++) {
        int p = k;
        for (int i = k + 1; pivots && i < n; i++)
            if (std::abs(a[size_t(i) * n + k]) > std::abs(a[size_t(p) * n + k])) p = i;
        if (pivots) pivots[k] = p + 1;
        for (int j = 0; p != k && j < n; j++) std::swap(a[size_t(k) * n + j], a[size_t(p) * n + j]);
        if (a[size_t(k) * n + k] == 0.0) {
            zero = zero ? zero : k + 1;
            continue;
        }
        for (int i = k + 1; i < n; i++) {
            Complex f = a[size_t(i) * n + k] /= a[size_t(k) * n + k];
            for (int j = k + 1; j < n; j++) a[size_t(i) * n + j] -= f * a[size_t(k) * n + j];
        }
    }
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) set_number(x, at(i, j), type, a[size_t(i) * n + j]);
    return zero;
}
// b = op(a)^-1 b, of `columns` right sides, with the decomposition of a.
static void substitute(const void* a, int type, int n, int lda, const int* pivots, int op, void* b, int columns, int ldb) {
    auto entry = [&](int i, int j) {
        Complex v = number_at(a, op ? int64_t(i) * lda + j : int64_t(j) * lda + i, type);
        return op == 2 ? std::conj(v) : v;
    };
    for (int column = 0; column < columns; column++) {
        std::vector<Complex> x(n);
        for (int i = 0; i < n; i++) x[i] = number_at(b, int64_t(column) * ldb + i, type);
        if (!op && pivots)
            for (int i = 0; i < n; i++) std::swap(x[i], x[pivots[i] - 1]);
        for (int i = 0; i < n; i++) { // lower: of L with ones, or of the transpose of U
            for (int j = 0; j < i; j++) x[i] -= entry(i, j) * x[j];
            if (op) x[i] /= entry(i, i);
        }
        for (int i = n - 1; i >= 0; i--) {
            for (int j = i + 1; j < n; j++) x[i] -= entry(i, j) * x[j];
            if (!op) x[i] /= entry(i, i);
        }
        if (op && pivots)
            for (int i = n - 1; i >= 0; i--) std::swap(x[i], x[pivots[i] - 1]);
        for (int i = 0; i < n; i++) set_number(b, int64_t(column) * ldb + i, type, x[i]);
    }
}
static int getrf(void* handle, int type, int n, void* const* a, int lda, int* pivots, int* info, int batch) {
    return queued(handle, [=] {
        for (int q = 0; q < batch; q++) info[q] = decompose(a[q], type, n, lda, pivots ? pivots + q * n : nullptr);
    });
}
static int getrs(void* handle, int op, int type, int n, int columns, const void* const* a, int lda, const int* pivots, void* const* b, int ldb, int* info, int batch) {
    *info = 0;
    return queued(handle, [=] {
        for (int q = 0; q < batch; q++) substitute(a[q], type, n, lda, pivots ? pivots + q * n : nullptr, op, b[q], columns, ldb);
    });
}
static int getri(void* handle, int type, int n, const void* const* a, int lda, const int* pivots, void* const* c, int ldc, int* info, int batch) {
    return queued(handle, [=] {
        for (int q = 0; q < batch; q++) {
            for (int i = 0; i < n; i++)
                for (int j = 0; j < n; j++) set_number(c[q], int64_t(j) * ldc + i, type, i == j);
            substitute(a[q], type, n, lda, pivots ? pivots + q * n : nullptr, 0, c[q], n, ldc);
            info[q] = 0;
        }
    });
}

extern "C" {
int cublasCreate_v2(void** handle) {
    *handle = new Handle;
    return OK;
}
int cublasDestroy_v2(void* handle) {
    delete (Handle*)handle;
    return OK;
}
int cublasGetVersion_v2(void*, int* version) {
    *version = 120900;
    return OK;
}
int cublasSetStream_v2(void* handle, void* stream) {
    of(handle).stream = stream;
    return OK;
}
int cublasGetStream_v2(void* handle, void** stream) {
    *stream = of(handle).stream;
    return OK;
}
int cublasSetWorkspace_v2(void*, void*, size_t) { return OK; }
int cublasSetPointerMode_v2(void* handle, int mode) {
    of(handle).pointer_mode = mode;
    return OK;
}
int cublasGetPointerMode_v2(void* handle, int* mode) {
    *mode = of(handle).pointer_mode;
    return OK;
}
int cublasSetMathMode(void* handle, int mode) {
    of(handle).math_mode = mode;
    return OK;
}
int cublasGetMathMode(void* handle, int* mode) {
    *mode = of(handle).math_mode;
    return OK;
}

int cublasGemmEx(void* h, int oa, int ob, int m, int n, int k, const void* al, const void* a, int ta, int lda, const void* b, int tb, int ldb, const void* be, void* c, int tc, int ldc, int compute, int) {
    return gemm(h, oa, ob, m, n, k, al, {a, ta, lda}, {b, tb, ldb}, be, {c, tc, ldc}, 1, scalars_of(compute, tc));
}
int cublasSgemmEx(void* h, int oa, int ob, int m, int n, int k, const float* al, const void* a, int ta, int lda, const void* b, int tb, int ldb, const float* be, void* c, int tc, int ldc) {
    return gemm(h, oa, ob, m, n, k, al, {a, ta, lda}, {b, tb, ldb}, be, {c, tc, ldc}, 1, F32);
}
int cublasGemmStridedBatchedEx(void* h, int oa, int ob, int m, int n, int k, const void* al, const void* a, int ta, int lda, long long sa, const void* b, int tb, int ldb, long long sb, const void* be, void* c, int tc, int ldc, long long sc, int batch, int compute, int) {
    return gemm(h, oa, ob, m, n, k, al, {a, ta, lda, sa}, {b, tb, ldb, sb}, be, {c, tc, ldc, sc}, batch, scalars_of(compute, tc));
}
int cublasGemmBatchedEx(void* h, int oa, int ob, int m, int n, int k, const void* al, const void* a, int ta, int lda, const void* b, int tb, int ldb, const void* be, void* c, int tc, int ldc, int batch, int compute, int) {
    return gemm(h, oa, ob, m, n, k, al, {a, ta, lda, 0, true}, {b, tb, ldb, 0, true}, be, {c, tc, ldc, 0, true}, batch, scalars_of(compute, tc));
}

// The functions of one type: S, D, C, Z.
#define OF_TYPE(L, t)                                                                                                                      \
    int cublas##L##gemm_v2(void* h, int oa, int ob, int m, int n, int k, const void* al, const void* a, int lda, const void* b, int ldb, const void* be, void* c, int ldc) { \
        return gemm(h, oa, ob, m, n, k, al, {a, t, lda}, {b, t, ldb}, be, {c, t, ldc}, 1, t);                                              \
    }                                                                                                                                      \
    int cublas##L##gemmBatched(void* h, int oa, int ob, int m, int n, int k, const void* al, const void* a, int lda, const void* b, int ldb, const void* be, void* c, int ldc, int batch) { \
        return gemm(h, oa, ob, m, n, k, al, {a, t, lda, 0, true}, {b, t, ldb, 0, true}, be, {c, t, ldc, 0, true}, batch, t);               \
    }                                                                                                                                      \
    int cublas##L##gemmStridedBatched(void* h, int oa, int ob, int m, int n, int k, const void* al, const void* a, int lda, long long sa, const void* b, int ldb, long long sb, const void* be, void* c, int ldc, long long sc, int batch) { \
        return gemm(h, oa, ob, m, n, k, al, {a, t, lda, sa}, {b, t, ldb, sb}, be, {c, t, ldc, sc}, batch, t);                              \
    }                                                                                                                                      \
    /* x and y are matrices of one row, whose columns are ix and iy elements apart */                                                      \
    int cublas##L##gemv_v2(void* h, int op, int m, int n, const void* al, const void* a, int lda, const void* x, int ix, const void* be, void* y, int iy) { \
        return gemm(h, 0, op ? 0 : 1, 1, op ? n : m, op ? m : n, al, {x, t, ix}, {a, t, lda}, be, {y, t, iy}, op == 2 ? -1 : 1, t);         \
    }                                                                                                                                      \
    int cublas##L##getrfBatched(void* h, int n, void* const* a, int lda, int* pivots, int* info, int batch) { return getrf(h, t, n, a, lda, pivots, info, batch); } \
    int cublas##L##getrsBatched(void* h, int op, int n, int columns, const void* const* a, int lda, const int* pivots, void* const* b, int ldb, int* info, int batch) { \
        return getrs(h, op, t, n, columns, a, lda, pivots, b, ldb, info, batch);                                                           \
    }                                                                                                                                      \
    int cublas##L##getriBatched(void* h, int n, const void* const* a, int lda, const int* pivots, void* const* c, int ldc, int* info, int batch) { \
        return getri(h, t, n, a, lda, pivots, c, ldc, info, batch);                                                                        \
    }
OF_TYPE(S, F32)
OF_TYPE(D, F64)
OF_TYPE(C, C64)
OF_TYPE(Z, C128)

#define DOT(NAME, t, is_conjugated)                                                                          \
    int cublas##NAME##_v2(void* h, int n, const void* x, int ix, const void* y, int iy, void* result) {      \
        return queued(h, [=] {                                                                               \
            Complex sum = 0;                                                                                 \
            for (int64_t i = 0; i < n; i++) {                                                                \
                Complex a = number_at(x, i * ix, t);                                                         \
                sum += (is_conjugated ? std::conj(a) : a) * number_at(y, i * iy, t);                         \
            }                                                                                                \
            set_number(result, 0, t, sum);                                                                   \
        });                                                                                                  \
    }
DOT(Sdot, F32, false)
DOT(Ddot, F64, false)
DOT(Cdotu, C64, false)
DOT(Cdotc, C64, true)
DOT(Zdotu, C128, false)
DOT(Zdotc, C128, true)
}
