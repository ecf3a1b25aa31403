// A stand-in for cuFFT: transforms of any length and number of dimensions, in double precision, not normalised.
#include "libraries.h"

#include <cmath>
#include <map>
#include <numeric>
#include <vector>

enum { R2C = 0x2a, C2R = 0x2c, C2C = 0x29, D2Z = 0x6a, Z2D = 0x6c, Z2Z = 0x69, INVALID_PLAN = 1, EXECUTION_FAILED = 6 };

struct Side { // the layout of numbers in memory
    std::vector<int64_t> extents; // of the array that has them
    int64_t stride = 1, distance = 0;
};
struct Plan {
    std::vector<int64_t> lengths;
    Side in, out;
    int type = 0, batch = 1;
    void* stream = nullptr;
};
static auto& plans = *new std::map<int, Plan>; // never destroyed: Python's last plans are given back when all ends

using Numbers = std::vector<Complex>;

// The transform of every step-th number, by the smallest factor of the length (Cooley and Tukey, 1965).
static Numbers transform(const Complex* x, int64_t n, int64_t step, int sign) {
    if (n == 1) return {x[0]};
    int64_t factor = 2;
    while (factor * factor <= n && n % factor) factor++;
    if (n % factor) factor = n;
    int64_t part = n / factor;
    std::vector<Numbers> parts;
    for (int64_t r = 0; r < factor; r++) parts.push_back(transform(x + r * step, part, step * factor, sign));
    Numbers y(n);
    for (int64_t k = 0; k < n; k++)
        for (int64_t r = 0; r < factor; r++) y[k] += std::polar(1.0, sign * 2 * M_PI * double(r * k % n) / double(n)) * parts[r][k % part];
    return y;
}

// Along each dimension of an array by rows.
static void transform_all(Numbers& x, const std::vector<int64_t>& lengths, int sign) {
    int64_t inner = 1;
    for (size_t d = lengths.size(); d--;) {
        int64_t n = lengths[d];
        for (int64_t i = 0; i < int64_t(x.size()) / n; i++) {
            Complex* first = &x[i / inner * inner * n + i % inner];
            Numbers y = transform(first, n, inner, sign);
            for (int64_t k = 0; k < n; k++) first[k * inner] = y[k];
        }
        inner *= n;
    }
}

// Where the number at some indices is, which are counted by `at` in an array of `lengths`.
static int64_t place(const Side& side, const std::vector<int64_t>& lengths, int64_t at) {
    int64_t offset = 0, inner = 1;
    for (size_t d = lengths.size(); d--; at /= lengths[d]) {
        offset += at % lengths[d] * inner;
        inner *= side.extents[d];
    }
    return offset * side.stride;
}

static void execute(const Plan& p, const void* from, void* to, int sign) {
    bool is_double = p.type >= Z2Z, from_real = p.type == R2C || p.type == D2Z, to_real = p.type == C2R || p.type == Z2D;
    int complex_type = is_double ? C128 : C64, real_type = is_double ? F64 : F32;
    auto halved = p.lengths;
    halved.back() = halved.back() / 2 + 1;
    auto total = [](const std::vector<int64_t>& n) { return std::accumulate(n.begin(), n.end(), int64_t(1), std::multiplies<>()); };
    int64_t count = total(p.lengths), last = p.lengths.back();
    for (int q = 0; q < p.batch; q++) {
        Numbers x(count);
        for (int64_t i = 0; i < count; i++) {
            int64_t at = i;
            bool is_mirrored = to_real && i % last >= halved.back(); // x[-k] is the conjugate of x[k]
            if (is_mirrored) {
                at = 0;
                int64_t rest = i, inner = 1;
                for (size_t d = p.lengths.size(); d--; rest /= p.lengths[d]) {
                    at += (p.lengths[d] - rest % p.lengths[d]) % p.lengths[d] * inner;
                    inner *= p.lengths[d];
                }
            }
            int64_t in_half = to_real ? at / last * halved.back() + at % last : at;
            int64_t where = q * p.in.distance + place(p.in, to_real ? halved : p.lengths, in_half);
            x[i] = number_at(from, where, from_real ? real_type : complex_type);
            if (is_mirrored) x[i] = std::conj(x[i]);
        }
        transform_all(x, p.lengths, from_real ? -1 : to_real ? 1 : sign);
        int64_t written = from_real ? total(halved) : count;
        for (int64_t i = 0; i < written; i++) {
            int64_t at = from_real ? i / halved.back() * last + i % halved.back() : i;
            set_number(to, q * p.out.distance + place(p.out, from_real ? halved : p.lengths, i), to_real ? real_type : complex_type, x[at]);
        }
    }
}

static int run(int plan, const void* from, void* to, int sign) {
    auto found = plans.find(plan);
    if (found == plans.end()) return INVALID_PLAN;
    Plan p = found->second;
    return in_order(p.stream, [=] { execute(p, from, to, sign); }) ? EXECUTION_FAILED : 0;
}

extern "C" {
int cufftGetVersion(int* version) {
    *version = 11400;
    return 0;
}
int cufftCreate(int* plan) {
    static int made = 0;
    plans[*plan = ++made] = {};
    return 0;
}
int cufftDestroy(int plan) {
    plans.erase(plan);
    return 0;
}
int cufftSetAutoAllocation(int, int) { return 0; }
int cufftSetWorkArea(int, void*) { return 0; }
int cufftSetStream(int plan, void* stream) {
    plans[plan].stream = stream;
    return 0;
}
int cufftMakePlanMany(int plan, int rank, int* n, int* in_extents, int in_stride, int in_distance, int* out_extents, int out_stride, int out_distance, int type, int batch, size_t* work_bytes) {
    Plan& p = plans[plan];
    p.lengths.assign(n, n + rank);
    p.type = type;
    p.batch = batch;
    auto side = [&](int* extents, int stride, int distance, bool is_halved) {
        Side s;
        s.extents = p.lengths;
        if (is_halved) s.extents.back() = s.extents.back() / 2 + 1;
        s.distance = std::accumulate(s.extents.begin(), s.extents.end(), int64_t(1), std::multiplies<>());
        if (extents) s = {{extents, extents + rank}, stride, distance};
        return s;
    };
    p.in = side(in_extents, in_stride, in_distance, type == C2R || type == Z2D);
    p.out = side(out_extents, out_stride, out_distance, type == R2C || type == D2Z);
    *work_bytes = 0;
    return 0;
}
int cufftMakePlan1d(int plan, int n, int type, int batch, size_t* work_bytes) {
    return cufftMakePlanMany(plan, 1, &n, nullptr, 1, 0, nullptr, 1, 0, type, batch, work_bytes);
}
int cufftExecC2C(int plan, void* from, void* to, int sign) { return run(plan, from, to, sign); }
int cufftExecZ2Z(int plan, void* from, void* to, int sign) { return run(plan, from, to, sign); }
int cufftExecR2C(int plan, void* from, void* to) { return run(plan, from, to, -1); }
int cufftExecD2Z(int plan, void* from, void* to) { return run(plan, from, to, -1); }
int cufftExecC2R(int plan, void* from, void* to) { return run(plan, from, to, 1); }
int cufftExecZ2D(int plan, void* from, void* to) { return run(plan, from, to, 1); }
}
