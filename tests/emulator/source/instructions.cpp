// The table of instructions: what each of them does with the registers of a thread, or of the lanes of a warp.
//
// Values of a register are the low bits of 64. float16 and bfloat16 are computed in double and rounded once: products
// and sums of two are exact there.
#include "ptx.h"

#include <cfenv>
#include <cmath>
#include <cstring>
#include <limits>

namespace ptx {
using std::string;

// -- values of registers ---------------------------------------------------------------------------------------------
struct Half {};
struct BFloat {};

template <class T> struct Value { // integers and bits
    static T read(uint64_t r) { return T(r); }
    static uint64_t bits(T x) { return std::make_unsigned_t<T>(x); }
};
template <> struct Value<bool> {
    static bool read(uint64_t r) { return r & 1; }
    static uint64_t bits(bool x) { return x; }
};
template <> struct Value<float> {
    static float read(uint64_t r) {
        uint32_t low = uint32_t(r);
        float x;
        memcpy(&x, &low, 4);
        return x;
    }
    static uint64_t bits(float x) {
        uint32_t r;
        memcpy(&r, &x, 4);
        return r;
    }
};
template <> struct Value<double> {
    static double read(uint64_t r) {
        double x;
        memcpy(&x, &r, 8);
        return x;
    }
    static uint64_t bits(double x) {
        uint64_t r;
        memcpy(&r, &x, 8);
        return r;
    }
};
template <> struct Value<Half> {
    static double read(uint64_t r) {
        uint16_t low = uint16_t(r);
        _Float16 x;
        memcpy(&x, &low, 2);
        return double(x);
    }
    static uint64_t bits(double value) {
        if (value != value) return 0x7fff;
        auto x = _Float16(value);
        uint16_t r;
        memcpy(&r, &x, 2);
        return r;
    }
};
template <> struct Value<BFloat> {
    static double read(uint64_t r) { return Value<float>::read(r << 16); }
    static uint64_t bits(double value) {
        if (value != value) return 0x7fff;
        float x = float(value);
        if (std::fabs(double(x)) > std::fabs(value)) x = std::nextafterf(x, 0); // towards zero, with a bit that
        uint64_t r = Value<float>::bits(x);                                      // tells that something was cut off
        if (double(x) != value) r |= 1;
        return (r + 0x7fff + ((r >> 16) & 1)) >> 16 & 0xffff;
    }
};
template <class T> using Read = decltype(Value<T>::read(0));
template <class T> constexpr bool is_half = std::is_same_v<T, Half> || std::is_same_v<T, BFloat>;
template <class T> constexpr bool is_real = std::is_floating_point_v<T> || is_half<T>;

static float flushed(float x, bool flush) { return flush && std::fabs(x) < std::numeric_limits<float>::min() ? std::copysign(0.0f, x) : x; }
template <class T> static T saturated(T x) { return x > 0 ? std::min(x, T(1)) : T(0); } // NaN becomes 0

// Calls a function with the C++ type of a PTX type.
template <class F> static void with_integer(Type type, F f) {
    switch (type) {
    case Type::u8: case Type::b8: return f(uint8_t());
    case Type::s8: return f(int8_t());
    case Type::u16: case Type::b16: return f(uint16_t());
    case Type::s16: return f(int16_t());
    case Type::u32: case Type::b32: return f(uint32_t());
    case Type::s32: return f(int32_t());
    case Type::u64: case Type::b64: return f(uint64_t());
    case Type::s64: return f(int64_t());
    default: throw std::runtime_error("the type is no integer");
    }
}
template <class F> static void with_real(Type type, F f) {
    switch (type) {
    case Type::f32: return f(float());
    case Type::f64: return f(double());
    case Type::f16: return f(Half());
    case Type::bf16: return f(BFloat());
    default: throw std::runtime_error("the type is no float");
    }
}
static bool is_real_type(Type t) { return t >= Type::f16 && t <= Type::f64; }
template <class F> static void with_number(Type type, F f) { is_real_type(type) ? with_real(type, f) : with_integer(type, f); }

static int rounding_of(const Words& w) { return w.has("rz") ? FE_TOWARDZERO : w.has("rm") ? FE_DOWNWARD : w.has("rp") ? FE_UPWARD : FE_TONEAREST; }

// -- functions of numbers --------------------------------------------------------------------------------------------
// F takes one to three values of the type and returns one. All lambdas below are such functions.
template <auto F, class T> static auto call(T a, T b, T c) {
    if constexpr (std::is_invocable_v<decltype(F), T>) return F(a);
    else if constexpr (std::is_invocable_v<decltype(F), T, T>) return F(a, b);
    else return F(a, b, c);
}

static uint64_t operand(Thread& t, const Instruction& i, size_t n) { return n < i.in.size() ? t[i.in[n]] : 0; }

template <auto F, class T> static void number_step(Thread& t, const Instruction& i) {
    using V = Read<T>;
    V a = Value<T>::read(operand(t, i, 0)), b = Value<T>::read(operand(t, i, 1)), c = Value<T>::read(operand(t, i, 2)), y;
    if constexpr (std::is_same_v<T, float>) a = flushed(a, i.flush), b = flushed(b, i.flush), c = flushed(c, i.flush);
    if (i.rounding) {
        fesetround(i.rounding);
        volatile V x = a, rounded = call<F, V>(x, b, c);
        y = rounded;
        fesetround(FE_TONEAREST);
    } else {
        y = V(call<F, V>(a, b, c));
    }
    if constexpr (std::is_same_v<T, float>) y = flushed(y, i.flush);
    if constexpr (is_real<T>)
        if (i.saturate) y = saturated(y);
    t[i.out[0]] = Value<T>::bits(y);
}

template <auto F, class T> static void pair_step(Thread& t, const Instruction& i) { // of f16x2 and bf16x2
    uint64_t y = 0;
    for (int shift : {0, 16}) {
        auto read = [&](int n) { return Value<T>::read(operand(t, i, n) >> shift); };
        y |= Value<T>::bits(call<F, double>(read(0), read(1), read(2))) << shift;
    }
    t[i.out[0]] = y;
}

template <auto F> static void numbers(Instruction& i, const Words& w) {
    i.rounding = rounding_of(w);
    if (i.type == Type::f16x2) i.step = pair_step<F, Half>;
    else if (i.type == Type::bf16x2) i.step = pair_step<F, BFloat>;
    else with_number(i.type, [&](auto x) { i.step = number_step<F, decltype(x)>; });
}
template <auto F> static void reals(Instruction& i, const Words& w) {
    i.rounding = rounding_of(w);
    if (i.type == Type::f16x2) i.step = pair_step<F, Half>;
    else if (i.type == Type::bf16x2) i.step = pair_step<F, BFloat>;
    else with_real(i.type, [&](auto x) { i.step = number_step<F, decltype(x)>; });
}
template <auto F> static void integers(Instruction& i, const Words&) {
    with_integer(i.type, [&](auto x) { i.step = number_step<F, decltype(x)>; });
}
template <auto F> static void bits(Instruction& i, const Words&) { // of any type, by its size
    switch (size_of(i.type)) {
    case 1: i.step = i.type == Type::pred ? number_step<F, bool> : number_step<F, uint8_t>; return;
    case 2: i.step = number_step<F, uint16_t>; return;
    case 4: i.step = number_step<F, uint32_t>; return;
    default: i.step = number_step<F, uint64_t>;
    }
}
template <Step S> static void step(Instruction& i, const Words&) { i.step = S; }

template <class T> static T least(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) return a != a ? b : b != b ? a : a == b ? (std::signbit(a) ? a : b) : a < b ? a : b;
    else return a < b ? a : b;
}
template <class T> static T most(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) return a != a ? b : b != b ? a : a == b ? (std::signbit(a) ? b : a) : a > b ? a : b;
    else return a > b ? a : b;
}
template <class T> static T multiply_add(T a, T b, T c) {
    if constexpr (std::is_floating_point_v<T>) return std::fma(a, b, c);
    else return T(a * b + c);
}
template <class T> static T quotient(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) return a / b;
    else return !b ? T(-1) : std::is_signed_v<T> && b == T(-1) ? T(-a) : T(a / b);
}
template <class T> static T high(T a, T b) {
    using Wide = std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>;
    return T(Wide(a) * Wide(b) >> (8 * sizeof(T)));
}
template <class T> static T extracted(T a, uint32_t at, uint32_t count) {
    constexpr uint32_t n = 8 * sizeof(T);
    at &= 255, count &= 255;
    if (!count) return 0;
    bool is_signed = std::is_signed_v<T>;
    uint64_t sign = is_signed && (uint64_t(a) >> std::min(at + count - 1, n - 1) & 1) ? ~uint64_t(0) : 0;
    uint64_t field = at < n ? std::make_unsigned_t<T>(a) >> at : 0;
    uint32_t held = at < n ? std::min(count, n - at) : 0; // bits of the field that a has
    uint64_t mask = held >= 64 ? ~uint64_t(0) : (uint64_t(1) << held) - 1;
    return T((field & mask) | (sign & ~mask));
}
template <class T> static T inserted(T a, T b, uint32_t at, uint32_t count) {
    constexpr uint32_t n = 8 * sizeof(T);
    at &= 255, count &= 255;
    if (at >= n || !count) return b;
    count = std::min(count, n - at);
    T mask = T((count >= 64 ? ~uint64_t(0) : (uint64_t(1) << count) - 1) << at);
    return T((b & ~mask) | (T(a << at) & mask));
}

// -- steps that are no function of values of one type ----------------------------------------------------------------
template <class T> static void wide_step(Thread& t, const Instruction& i) { // mul.wide, mad.wide: twice the bits
    using Wide = std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>;
    uint64_t y = uint64_t(Wide(T(t[i.in[0]])) * Wide(T(t[i.in[1]]))) + operand(t, i, 2);
    t[i.out[0]] = sizeof(T) == 2 ? y & 0xffffffff : y;
}
static void wide(Instruction& i, const Words&) {
    with_integer(i.type, [&](auto x) { i.step = wide_step<decltype(x)>; });
}

template <class T> static void shift_left(Thread& t, const Instruction& i) {
    uint32_t n = uint32_t(t[i.in[1]]);
    t[i.out[0]] = n >= 8 * sizeof(T) ? 0 : Value<T>::bits(T(T(t[i.in[0]]) << n));
}
template <class T> static void shift_right(Thread& t, const Instruction& i) {
    uint32_t n = uint32_t(t[i.in[1]]), most = 8 * sizeof(T) - 1;
    T a = T(t[i.in[0]]);
    t[i.out[0]] = Value<T>::bits(n > most ? T(std::is_signed_v<T> ? a >> most : 0) : T(a >> n));
}
static void left(Instruction& i, const Words&) { with_integer(i.type, [&](auto x) { i.step = shift_left<decltype(x)>; }); }
static void right(Instruction& i, const Words&) { with_integer(i.type, [&](auto x) { i.step = shift_right<decltype(x)>; }); }
static void funnel_step(Thread& t, const Instruction& i) { // shf: of the 64 bits (b, a)
    uint64_t both = (t[i.in[0]] & 0xffffffff) | t[i.in[1]] << 32;
    uint32_t n = uint32_t(t[i.in[2]]), count = i.mode & 2 ? n & 31 : std::min(n, 32u);
    t[i.out[0]] = uint32_t(i.mode & 1 ? both >> count : (both << count) >> 32);
}
static void funnel(Instruction& i, const Words& w) {
    i.mode = w.has("r") + 2 * w.has("wrap");
    i.step = funnel_step;
}

template <class T> static void extract_step(Thread& t, const Instruction& i) {
    t[i.out[0]] = Value<T>::bits(extracted(T(t[i.in[0]]), uint32_t(t[i.in[1]]), uint32_t(t[i.in[2]])));
}
template <class T> static void insert_step(Thread& t, const Instruction& i) {
    t[i.out[0]] = Value<T>::bits(inserted(T(t[i.in[0]]), T(t[i.in[1]]), uint32_t(t[i.in[2]]), uint32_t(t[i.in[3]])));
}
static void extract(Instruction& i, const Words&) { with_integer(i.type, [&](auto x) { i.step = extract_step<decltype(x)>; }); }
static void insert(Instruction& i, const Words&) { with_integer(i.type, [&](auto x) { i.step = insert_step<decltype(x)>; }); }

static void permute_step(Thread& t, const Instruction& i) { // prmt: the bytes of two registers, by four selectors
    uint64_t both = (t[i.in[0]] & 0xffffffff) | t[i.in[1]] << 32;
    uint32_t selectors = uint32_t(t[i.in[2]]), y = 0;
    for (int k = 0; k < 4; k++) {
        int s = selectors >> (4 * k) & 15;
        uint8_t byte = uint8_t(both >> (8 * (s & 7)));
        y |= uint32_t(s & 8 ? uint8_t(int8_t(byte) >> 7) : byte) << (8 * k);
    }
    t[i.out[0]] = y;
}
static void logic_step(Thread& t, const Instruction& i) { // lop3: a table of eight bits for each bit of three operands
    uint32_t a = uint32_t(t[i.in[0]]), b = uint32_t(t[i.in[1]]), c = uint32_t(t[i.in[2]]), table = uint32_t(t[i.in[3]]), y = 0;
    for (int k = 0; k < 32; k++) y |= (table >> ((a >> k & 1) * 4 + (b >> k & 1) * 2 + (c >> k & 1)) & 1) << k;
    t[i.out[0]] = y;
}

// add.cc, addc, sub.cc, subc, mad.cc, madc: sums with a carry between instructions.
template <class T> static void carry_step(Thread& t, const Instruction& i) {
    using U = std::make_unsigned_t<T>;
    unsigned __int128 a = U(t[i.in[0]]), b = U(t[i.in[1]]), carry = i.mode & 1 ? t[CARRY] & 1 : 0, y;
    bool subtracts = i.mode & 4, multiplies = i.mode & 8, takes_high = i.mode & 16;
    if (multiplies) {
        a = takes_high ? U(high(T(t[i.in[0]]), T(t[i.in[1]]))) : U(a * b);
        b = U(t[i.in[2]]);
    }
    y = subtracts ? a - b - carry : a + b + carry;
    t[i.out[0]] = U(y);
    if (i.mode & 2) t[CARRY] = uint64_t(y >> (8 * sizeof(T))) & 1;
}
static void carry(Instruction& i, const Words& w) {
    auto& first = w.all[0];
    i.mode = (first.back() == 'c') + 2 * w.has("cc") + 4 * (first[0] == 's') + 8 * (first[0] == 'm') + 16 * w.has("hi");
    with_integer(i.type, [&](auto x) {
        if constexpr (sizeof(x) >= 4) i.step = carry_step<decltype(x)>;
    });
}

// Comparisons. The last six are true where an operand is NaN.
static const char* const COMPARISONS[] = {"eq", "ne", "lt", "le", "gt", "ge", "num", "nan", "equ", "neu", "ltu", "leu", "gtu", "geu", "lo", "ls", "hi", "hs"};
template <class V> static bool compared(int which, V a, V b) {
    bool is_ordered = a == a && b == b;
    switch (which) {
    case 0: return is_ordered && a == b;
    case 1: return is_ordered && a != b;
    case 2: case 14: return a < b;
    case 3: case 15: return a <= b;
    case 4: case 16: return a > b;
    case 5: case 17: return a >= b;
    case 6: return is_ordered;
    case 7: return !is_ordered;
    case 8: return !is_ordered || a == b;
    case 9: return !is_ordered || a != b;
    case 10: return !is_ordered || a < b;
    case 11: return !is_ordered || a <= b;
    case 12: return !is_ordered || a > b;
    default: return !is_ordered || a >= b;
    }
}
template <class T> static bool comparison(Thread& t, const Instruction& i) {
    auto a = Value<T>::read(t[i.in[0]]), b = Value<T>::read(t[i.in[1]]);
    if constexpr (std::is_same_v<T, float>) a = flushed(a, i.flush), b = flushed(b, i.flush);
    return compared(i.mode & 31, a, b);
}
template <class T> static void setp_step(Thread& t, const Instruction& i) { // d|not d = (a cmp b) [and, or, xor] c
    bool y = comparison<T>(t, i), not_y = !y;
    if (i.in.size() > 2) {
        bool c = (t[i.in[2]] & 1) != i.negated;
        int how = i.mode >> 5;
        y = how == 1 ? y && c : how == 2 ? y || c : y != c;
        not_y = how == 1 ? not_y && c : how == 2 ? not_y || c : not_y != c;
    }
    t[i.out[0]] = y;
    if (i.out.size() > 1 && i.out[1] >= 0) t[i.out[1]] = not_y;
}
template <class T> static void set_step(Thread& t, const Instruction& i) { // all bits, or 1.0
    uint64_t yes = i.type == Type::f32 ? 0x3f800000 : i.type == Type::f16 ? 0x3c00 : i.type == Type::bf16 ? 0x3f80 : 0xffffffff;
    t[i.out[0]] = comparison<T>(t, i) ? yes : 0;
}
static int comparison_of(const Words& w) {
    for (int k = 0; k < 18; k++)
        if (w.all[1] == COMPARISONS[k]) return k | (w.has("and") ? 32 : w.has("or") ? 64 : w.has("xor") ? 96 : 0);
    throw std::runtime_error("comparison");
}
static void setp(Instruction& i, const Words& w) {
    i.mode = comparison_of(w);
    with_number(i.type, [&](auto x) { i.step = setp_step<decltype(x)>; });
}
static void set(Instruction& i, const Words& w) {
    i.mode = comparison_of(w);
    if (i.type != Type::f32 && i.type != Type::f16 && i.type != Type::bf16 && size_of(i.type) != 4) throw std::runtime_error("type");
    with_number(i.from, [&](auto x) { i.step = set_step<decltype(x)>; });
}
template <class T> static void testp_step(Thread& t, const Instruction& i) {
    auto x = Value<T>::read(t[i.in[0]]);
    bool is[] = {std::isfinite(x), std::isinf(x), x == x, x != x, std::isnormal(x), std::fpclassify(x) == FP_SUBNORMAL};
    t[i.out[0]] = is[i.mode];
}
static void testp(Instruction& i, const Words& w) {
    const char* const names[] = {"finite", "infinite", "number", "notanumber", "normal", "subnormal"};
    while (!w.has(names[i.mode])) i.mode++;
    i.type == Type::f64 ? i.step = testp_step<double> : i.step = testp_step<float>;
}

static void select_step(Thread& t, const Instruction& i) {
    t[i.out[0]] = (t[i.in[2]] & 1) != i.negated ? t[i.in[0]] : t[i.in[1]];
}
static void move_step(Thread& t, const Instruction& i) { t[i.out[0]] = t[i.in[0]]; }
static void pack_step(Thread& t, const Instruction& i) { // d = {a, b, ...}
    int n = 8 * size_of(i.type) / int(i.in.size());
    uint64_t y = 0;
    for (size_t k = 0; k < i.in.size(); k++) y |= (t[i.in[k]] & ~uint64_t(0) >> (64 - n)) << (k * n);
    t[i.out[0]] = y;
}
static void unpack_step(Thread& t, const Instruction& i) { // {d, e, ...} = a
    int n = 8 * size_of(i.type) / int(i.out.size());
    uint64_t x = t[i.in[0]];
    for (size_t k = 0; k < i.out.size(); k++)
        if (i.out[k] >= 0) t[i.out[k]] = x >> (k * n) & ~uint64_t(0) >> (64 - n);
}
static void move(Instruction& i, const Words&) { i.step = i.out.size() > 1 ? unpack_step : i.in.size() > 1 ? pack_step : move_step; }

// cvt: to the first type from the second.
static double to_integral(double x, int mode) { return mode == 1 ? std::trunc(x) : mode == 2 ? std::floor(x) : mode == 3 ? std::ceil(x) : std::nearbyint(x); }
template <class To, class From> static void convert_step(Thread& t, const Instruction& i) {
    auto x = Value<From>::read(t[i.in[0]]);
    if constexpr (std::is_same_v<From, float>) x = flushed(x, i.flush);
    if constexpr (!is_real<To>) {
        using Limits = std::numeric_limits<To>;
        To y;
        if constexpr (is_real<From>) { // out of range: the nearest number; NaN: 0, or the least number of 64 bits
            double v = to_integral(double(x), i.mode ? i.mode : 1), above = std::ldexp(1.0, Limits::digits);
            y = v != v ? (sizeof(To) == 8 ? To(uint64_t(1) << 63) : To(0)) : v >= above ? Limits::max() : v < double(Limits::min()) ? Limits::min() : To(v);
        } else {
            y = To(x);
            if (i.saturate) y = __int128(x) > __int128(Limits::max()) ? Limits::max() : __int128(x) < __int128(Limits::min()) ? Limits::min() : To(x);
        }
        t[i.out[0]] = Value<To>::bits(y);
    } else {
        using V = Read<To>;
        if constexpr (is_real<From>)
            if (i.mode) x = decltype(x)(to_integral(double(x), i.mode));
        fesetround(i.rounding);
        volatile auto given = x;
        volatile V rounded = V(given);
        fesetround(FE_TONEAREST);
        V y = rounded;
        if (is_half<To> && i.rounding == FE_TOWARDZERO) { // step back from the number that is nearest
            uint64_t r = Value<To>::bits(y);
            if (std::fabs(Value<To>::read(r)) > std::fabs(double(y))) r--;
            t[i.out[0]] = r;
            return;
        }
        if constexpr (std::is_same_v<To, float>) y = flushed(y, i.flush);
        if (i.saturate) y = saturated(y);
        t[i.out[0]] = Value<To>::bits(y);
    }
}
template <class T> static void convert_two_step(Thread& t, const Instruction& i) { // the first operand is the upper half
    t[i.out[0]] = Value<T>::bits(Value<float>::read(t[i.in[1]])) | Value<T>::bits(Value<float>::read(t[i.in[0]])) << 16;
}
static void to_tf32_step(Thread& t, const Instruction& i) { // to nearest, ties away from zero
    uint32_t r = uint32_t(t[i.in[0]]);
    float x = Value<float>::read(r);
    t[i.out[0]] = x != x ? 0x7fffffff : (r + 0x1000) & 0xffffe000;
}
static void convert(Instruction& i, const Words& w) {
    if (w.has("tf32")) {
        if (!w.has("rna")) throw std::runtime_error("rounding to tf32");
        i.step = to_tf32_step;
        return;
    }
    if (i.type == Type::f16x2 || i.type == Type::bf16x2) {
        if (i.in.size() != 2 || !w.has("rn")) throw std::runtime_error("conversion of two");
        i.step = i.type == Type::f16x2 ? convert_two_step<Half> : convert_two_step<BFloat>;
        return;
    }
    i.mode = w.has("rzi") ? 1 : w.has("rmi") ? 2 : w.has("rpi") ? 3 : w.has("rni") ? 4 : 0;
    i.rounding = rounding_of(w);
    with_number(i.type, [&](auto to) {
        with_number(i.from, [&](auto from) { i.step = convert_step<decltype(to), decltype(from)>; });
    });
}

// -- memory ----------------------------------------------------------------------------------------------------------
static char* address(Thread& t, const Instruction& i, int nth, size_t alignment) {
    uint64_t at = t[i.in[nth]] + i.offset[nth];
    if (at % alignment) throw Fault(MISALIGNED_ADDRESS, "misaligned address");
    return (char*)at;
}
template <int N, bool S> static void load_step(Thread& t, const Instruction& i) {
    const char* from = address(t, i, 0, N * i.out.size());
    for (size_t k = 0; k < i.out.size(); k++) {
        uint64_t x = 0;
        memcpy(&x, from + k * N, N);
        if (S && N < 8) x = uint64_t(int64_t(x << (64 - 8 * N)) >> (64 - 8 * N)); // the register may be wider
        if (i.out[k] >= 0) t[i.out[k]] = x;
    }
}
template <int N> static void store_step(Thread& t, const Instruction& i) {
    char* to = address(t, i, 0, N * (i.in.size() - 1));
    for (size_t k = 1; k < i.in.size(); k++) memcpy(to + (k - 1) * N, &t[i.in[k]], N);
}
static void load_of(Instruction& i, const Words&) {
    bool s = i.type >= Type::s8 && i.type <= Type::s64;
    switch (size_of(i.type)) {
    case 1: i.step = s ? load_step<1, true> : load_step<1, false>; return;
    case 2: i.step = s ? load_step<2, true> : load_step<2, false>; return;
    case 4: i.step = s ? load_step<4, true> : load_step<4, false>; return;
    default: i.step = load_step<8, false>;
    }
}
static void store_of(Instruction& i, const Words&) {
    switch (size_of(i.type)) {
    case 1: i.step = store_step<1>; return;
    case 2: i.step = store_step<2>; return;
    case 4: i.step = store_step<4>; return;
    default: i.step = store_step<8>;
    }
}

static const char* const ATOMS[] = {"add", "min", "max", "exch", "cas", "and", "or", "xor", "inc", "dec"};
template <class T> static void atom_step(Thread& t, const Instruction& i) {
    constexpr int size = is_half<T> ? 2 : sizeof(T);
    char* at = address(t, i, 0, size);
    uint64_t old = 0, other = operand(t, i, 1);
    memcpy(&old, at, size);
    auto x = Value<T>::read(old);
    auto b = Value<T>::read(other);
    auto y = x;
    if (i.mode == 3) y = b;
    else if (i.mode == 0) y = decltype(y)(x + b);
    else if constexpr (!is_real<T>) switch (i.mode) {
        case 1: y = least(x, b); break;
        case 2: y = most(x, b); break;
        case 4: y = x == b ? T(t[i.in[2]]) : x; break;
        case 5: y = x & b; break;
        case 6: y = x | b; break;
        case 7: y = x ^ b; break;
        case 8: y = x >= b ? 0 : x + 1; break;
        default: y = x == 0 || x > b ? b : x - 1;
    }
    uint64_t now = Value<T>::bits(y);
    memcpy(at, &now, size);
    if (!i.out.empty() && i.out[0] >= 0) t[i.out[0]] = old;
}
static void atom(Instruction& i, const Words& w) {
    while (i.mode < 10 && !w.has(ATOMS[i.mode])) i.mode++;
    if (i.mode == 10 || (is_real_type(i.type) && i.mode)) throw std::runtime_error("atomic operation");
    with_number(i.type, [&](auto x) { i.step = atom_step<decltype(x)>; });
}

// cp.async: [to], [from], size, and the bytes that are copied, or a predicate: that none are.
static void copy_step(Thread& t, const Instruction& i) {
    int size = int(t[i.in[2]]), given = i.in.size() < 4 ? size : !i.last_is_predicate ? int(t[i.in[3]]) : t[i.in[3]] & 1 ? 0 : size;
    char *to = address(t, i, 0, size), *from = address(t, i, 1, given ? size : 1);
    t.copies.push_back({to, from, size, given, t.groups});
}
static void commit_step(Thread& t, const Instruction&) { t.groups++; }
void finish_copies(Thread& t, int groups_left) {
    size_t n = 0;
    for (auto& c : t.copies) {
        if (c.group >= t.groups - groups_left) break;
        memcpy(c.to, c.from, c.given);
        memset(c.to + c.given, 0, c.size - c.given);
        n++;
    }
    t.copies.erase(t.copies.begin(), t.copies.begin() + n);
}
static void wait_group_step(Thread& t, const Instruction& i) { finish_copies(t, int(t[i.in[0]])); }
static void wait_all_step(Thread& t, const Instruction&) {
    t.groups++;
    finish_copies(t, 0);
}

// -- control ---------------------------------------------------------------------------------------------------------
static void branch_step(Thread& t, const Instruction& i) { t.pc = i.target; }
static void exit_step(Thread& t, const Instruction&) { t.state = State::done; }
static void nothing_step(Thread&, const Instruction&) {}
static void trap_step(Thread&, const Instruction&) { throw Fault(LAUNCH_FAILURE, "trap"); }
static void barrier_step(Thread& t, const Instruction& i) {
    if (t[i.in[0]]) throw Fault(LAUNCH_FAILURE, "barriers other than 0 are not emulated");
    t.state = State::at_barrier;
}
static void meet_step(Thread& t, const Instruction&) { t.state = State::at_warp_operation; }
static void active_step(Thread& t, const Instruction& i) { t[i.out[0]] = 1u << t.lane; } // lanes may always be apart

// -- operations of a warp --------------------------------------------------------------------------------------------
template <Together T> static void together(Instruction& i, const Words& w) {
    i.step = meet_step;
    i.has_mask = w.has("sync") && !w.has("aligned");
    i.together = T;
}
static void need_all(const Warp& warp) {
    for (auto* t : warp)
        if (!t) throw Fault(LAUNCH_FAILURE, "an operation of a whole warp without some of its lanes");
}

static void sync_together(const Warp&, const Instruction&) {}

// shfl: each lane reads `a` of another one: d|found = a, lane or distance, (segment << 8) + clamp, mask.
static void shuffle_together(const Warp& warp, const Instruction& i) {
    uint64_t y[32];
    bool found[32];
    for (int lane = 0; lane < 32; lane++) {
        if (!warp[lane]) continue;
        Thread& t = *warp[lane];
        int b = int(t[i.in[1]] & 31), clamp = int(t[i.in[2]] & 31), segment = int(t[i.in[2]] >> 8 & 31);
        int last = (lane & segment) | (clamp & ~segment), first = lane & segment, from;
        if (i.mode == 0) from = lane - b, found[lane] = from >= last; // up
        else {
            from = i.mode == 1 ? lane + b : i.mode == 2 ? lane ^ b : first | (b & ~segment); // down, bfly, idx
            found[lane] = from <= last;
        }
        if (!found[lane]) from = lane;
        if (!warp[from]) throw Fault(LAUNCH_FAILURE, "shfl from a lane that does not take part");
        y[lane] = (*warp[from])[i.in[0]] & 0xffffffff;
    }
    for (int lane = 0; lane < 32; lane++)
        if (warp[lane]) {
            (*warp[lane])[i.out[0]] = y[lane];
            if (i.out.size() > 1) (*warp[lane])[i.out[1]] = found[lane];
        }
}
static void shuffle(Instruction& i, const Words& w) {
    i.mode = w.has("up") ? 0 : w.has("down") ? 1 : w.has("bfly") ? 2 : 3;
    together<shuffle_together>(i, w);
}

static void vote_together(const Warp& warp, const Instruction& i) {
    uint32_t yes = 0, here = 0;
    for (int lane = 0; lane < 32; lane++)
        if (warp[lane]) {
            here |= 1u << lane;
            if (((*warp[lane])[i.in[0]] & 1) != i.negated) yes |= 1u << lane;
        }
    uint64_t y = i.mode == 0 ? yes : i.mode == 1 ? yes != 0 : i.mode == 2 ? yes == here : yes == here || !yes;
    for (auto* t : warp)
        if (t) (*t)[i.out[0]] = y;
}
static void vote(Instruction& i, const Words& w) {
    i.mode = w.has("ballot") ? 0 : w.has("any") ? 1 : w.has("all") ? 2 : 3;
    together<vote_together>(i, w);
}

template <class F> static void reduce_lanes(const Warp& warp, const Instruction& i, F f) {
    bool is_first = true;
    uint32_t y = 0;
    for (auto* t : warp)
        if (t) {
            uint32_t x = uint32_t((*t)[i.in[0]]);
            y = is_first ? x : f(y, x);
            is_first = false;
        }
    for (auto* t : warp)
        if (t) (*t)[i.out[0]] = y;
}
static void redux_together(const Warp& warp, const Instruction& i) {
    bool s = i.type == Type::s32;
    reduce_lanes(warp, i, [&](uint32_t a, uint32_t b) -> uint32_t {
        switch (i.mode) {
        case 0: return a + b;
        case 1: return s ? uint32_t(std::min(int32_t(a), int32_t(b))) : std::min(a, b);
        case 2: return s ? uint32_t(std::max(int32_t(a), int32_t(b))) : std::max(a, b);
        case 5: return a & b;
        case 6: return a | b;
        default: return a ^ b;
        }
    });
}
static void redux(Instruction& i, const Words& w) {
    while (!w.has(ATOMS[i.mode])) i.mode++;
    together<redux_together>(i, w);
}

// ldmatrix: lanes 8j to 8j+7 have the addresses of the rows of matrix j, of 8 numbers of 16 bits; lane l gets the numbers
// 2(l%4) and 2(l%4)+1 of row l/4, or of that column if the matrix is transposed.
static void ldmatrix_together(const Warp& warp, const Instruction& i) {
    need_all(warp);
    int count = int(i.out.size());
    const char* rows[32];
    for (int lane = 0; lane < 8 * count; lane++) rows[lane] = address(*warp[lane], i, 0, 16);
    for (int j = 0; j < count; j++)
        for (int lane = 0; lane < 32; lane++) {
            uint16_t pair[2];
            for (int e = 0; e < 2; e++) {
                int row = lane / 4, column = lane % 4 * 2 + e;
                if (i.mode) std::swap(row, column);
                memcpy(&pair[e], rows[8 * j + row] + 2 * column, 2);
            }
            (*warp[lane])[i.out[j]] = pair[0] | uint32_t(pair[1]) << 16;
        }
}
static void ldmatrix(Instruction& i, const Words& w) {
    i.mode = w.has("trans");
    together<ldmatrix_together>(i, w);
}

// mma: d = a b + c, with a of 16 rows, b of 8 columns, and `mode` products for each sum (f64: 8 rows, 4 products).
// With g = lane / 4 and q = lane % 4, a register of a has row g or g + 8 and columns from q or 2q on, one of b the rows
// from q or 2q on of column g, one of c row g or g + 8 and columns from 2q on. See "Matrix Fragments" in the reference.
static bool rounds_to_zero() { // tensor cores are said to; in the reference sums have an unspecified order and rounding
    static const bool is = getenv("EMULATED_MMA") && !strcmp(getenv("EMULATED_MMA"), "truncate");
    return is;
}
template <class F> static void multiply(const Warp& warp, const Instruction& i, int depth, int per_register, F read) {
    need_all(warp);
    double a[16][16], b[16][8];
    float c[16][8];
    int of_a = depth / (4 * per_register) * 2, of_b = depth / (4 * per_register);
    for (int lane = 0; lane < 32; lane++) {
        Thread& t = *warp[lane];
        int g = lane / 4, q = lane % 4;
        for (int e = 0; e < per_register; e++) {
            for (int k = 0; k < of_a; k++) a[g + 8 * (k % 2)][q * per_register + e + 4 * per_register * (k / 2)] = read(t[i.in[k]], e);
            for (int k = 0; k < of_b; k++) b[q * per_register + e + 4 * per_register * k][g] = read(t[i.in[of_a + k]], e);
        }
        for (int k = 0; k < 4; k++) c[g + 8 * (k / 2)][2 * q + k % 2] = Value<float>::read(t[i.in[of_a + of_b + k]]);
    }
    for (int row = 0; row < 16; row++)
        for (int column = 0; column < 8; column++) {
            double sum = c[row][column];
            for (int k = 0; k < depth; k++) sum += a[row][k] * b[k][column];
            float y = float(sum);
            if (rounds_to_zero() && std::fabs(double(y)) > std::fabs(sum)) y = std::nextafterf(y, 0);
            c[row][column] = y;
        }
    for (int lane = 0; lane < 32; lane++)
        for (int k = 0; k < 4; k++) (*warp[lane])[i.out[k]] = Value<float>::bits(c[lane / 4 + 8 * (k / 2)][2 * (lane % 4) + k % 2]);
}
template <class T> static void mma_half(const Warp& warp, const Instruction& i) {
    multiply(warp, i, i.mode, 2, [](uint64_t r, int e) { return Value<T>::read(r >> (16 * e)); });
}
static void mma_tf32(const Warp& warp, const Instruction& i) {
    multiply(warp, i, i.mode, 1, [](uint64_t r, int) { return double(Value<float>::read(r & 0xffffe000)); });
}
static void mma_f64(const Warp& warp, const Instruction& i) {
    need_all(warp);
    double y[32][2];
    for (int lane = 0; lane < 32; lane++)
        for (int e = 0; e < 2; e++) {
            double sum = Value<double>::read((*warp[lane])[i.in[2 + e]]);
            for (int k = 0; k < 4; k++)
                sum = std::fma(Value<double>::read((*warp[lane / 4 * 4 + k])[i.in[0]]), Value<double>::read((*warp[(lane % 4 * 2 + e) * 4 + k])[i.in[1]]), sum);
            y[lane][e] = sum;
        }
    for (int lane = 0; lane < 32; lane++)
        for (int e = 0; e < 2; e++) (*warp[lane])[i.out[e]] = Value<double>::bits(y[lane][e]);
}
static void mma(Instruction& i, const Words& w) {
    bool is_half_kind = w.has("f16") || w.has("bf16");
    i.mode = w.has("m16n8k16") ? 16 : w.has("m16n8k8") ? 8 : w.has("m16n8k4") ? 4 : 0;
    if (w.has("m8n8k4") && w.has("f64")) together<mma_f64>(i, w);
    else if (w.has("tf32") && (i.mode == 8 || i.mode == 4)) together<mma_tf32>(i, w);
    else if (is_half_kind && i.mode >= 8 && i.type == Type::f32) w.has("bf16") ? together<mma_half<BFloat>>(i, w) : together<mma_half<Half>>(i, w);
    else throw std::runtime_error("shape or type");
}

// -- the table -------------------------------------------------------------------------------------------------------
#define MEMORY "global shared shared::cta local param const volatile relaxed acquire release weak cta gpu sys nc ca cg cs lu cv cop unified v2 v4 " \
               "L1::evict_last L1::evict_first L1::no_allocate L2::64B L2::128B L2::256B"
#define COMPARED "eq ne lt le gt ge equ neu ltu leu gtu geu num nan lo ls hi hs and or xor ftz"
static const Row TABLE[] = {
    // arithmetic
    {"add.cc", "", "daa", carry},
    {"addc", "cc", "daa", carry},
    {"sub.cc", "", "daa", carry},
    {"subc", "cc", "daa", carry},
    {"mad.cc", "lo hi", "daaa", carry},
    {"madc", "lo hi cc", "daaa", carry},
    {"add", "rn rz rm rp ftz sat", "daa", numbers<[](auto a, auto b) { return a + b; }>},
    {"sub", "rn rz rm rp ftz sat", "daa", numbers<[](auto a, auto b) { return a - b; }>},
    {"mul.wide", "", "daa", wide},
    {"mul.hi", "", "daa", integers<[](auto a, auto b) { return high(a, b); }>},
    {"mul", "lo rn rz rm rp ftz sat", "daa", numbers<[](auto a, auto b) { return decltype(a)(a * b); }>},
    {"mad.wide", "", "daaa", wide},
    {"mad.hi", "", "daaa", integers<[](auto a, auto b, auto c) { return decltype(a)(high(a, b) + c); }>},
    {"mad", "lo rn rz rm rp ftz sat", "daaa", numbers<[](auto a, auto b, auto c) { return multiply_add(a, b, c); }>},
    {"fma", "rn rz rm rp ftz sat", "daaa", reals<[](auto a, auto b, auto c) { return std::fma(a, b, c); }>},
    {"div", "rn rz rm rp approx full ftz", "daa", numbers<[](auto a, auto b) { return quotient(a, b); }>},
    {"rem", "", "daa", integers<[](auto a, auto b) { return decltype(a)(!b ? a : b == decltype(b)(-1) && std::is_signed_v<decltype(a)> ? 0 : a % b); }>},
    {"min", "ftz", "daa", numbers<[](auto a, auto b) { return least(a, b); }>},
    {"max", "ftz", "daa", numbers<[](auto a, auto b) { return most(a, b); }>},
    {"abs", "ftz", "da", numbers<[](auto a) { if constexpr (std::is_floating_point_v<decltype(a)>) return std::fabs(a); else return decltype(a)(a < 0 ? -a : a); }>},
    {"neg", "ftz", "da", numbers<[](auto a) { return decltype(a)(-a); }>},
    {"copysign", "", "daa", reals<[](auto a, auto b) { return std::copysign(b, a); }>},
    // functions; those with .approx are the host's, which are more exact
    {"rcp", "rn rz rm rp approx ftz", "da", reals<[](auto a) { return 1 / a; }>},
    {"sqrt", "rn rz rm rp approx ftz", "da", reals<[](auto a) { return std::sqrt(a); }>},
    {"rsqrt", "approx ftz", "da", reals<[](auto a) { return 1 / std::sqrt(a); }>},
    {"ex2", "approx ftz", "da", reals<[](auto a) { return std::exp2(a); }>},
    {"lg2", "approx ftz", "da", reals<[](auto a) { return std::log2(a); }>},
    {"sin", "approx ftz", "da", reals<[](auto a) { return std::sin(a); }>},
    {"cos", "approx ftz", "da", reals<[](auto a) { return std::cos(a); }>},
    {"tanh", "approx", "da", reals<[](auto a) { return std::tanh(a); }>},
    // bits
    {"and", "", "daa", bits<[](auto a, auto b) { return decltype(a)(a & b); }>},
    {"or", "", "daa", bits<[](auto a, auto b) { return decltype(a)(a | b); }>},
    {"xor", "", "daa", bits<[](auto a, auto b) { return decltype(a)(a ^ b); }>},
    {"not", "", "da", bits<[](auto a) { if constexpr (std::is_same_v<decltype(a), bool>) return !a; else return decltype(a)(~a); }>},
    {"cnot", "", "da", bits<[](auto a) { return decltype(a)(a == 0); }>},
    {"shl", "", "daa", left},
    {"shr", "", "daa", right},
    {"shf", "l r wrap clamp", "daaa", funnel},
    {"bfe", "", "daaa", extract},
    {"bfi", "", "daaaa", insert},
    {"prmt", "", "daaa", step<permute_step>},
    {"lop3", "", "daaaa", step<logic_step>},
    {"clz", "", "da", step<[](Thread& t, const Instruction& i) { uint64_t x = t[i.in[0]]; t[i.out[0]] = size_of(i.type) == 8 ? (x ? __builtin_clzll(x) : 64) : (uint32_t(x) ? __builtin_clz(uint32_t(x)) : 32); }>},
    {"popc", "", "da", step<[](Thread& t, const Instruction& i) { uint64_t x = t[i.in[0]]; t[i.out[0]] = __builtin_popcountll(size_of(i.type) == 8 ? x : uint32_t(x)); }>},
    {"brev", "", "da", bits<[](auto a) { decltype(a) y = 0; for (size_t k = 0; k < 8 * sizeof(a); k++) y = decltype(a)(y << 1 | (a >> k & 1)); return y; }>},
    // comparisons, choices, moves, conversions
    {"setp", COMPARED, "daa~p", setp},
    {"set", COMPARED, "daa", set},
    {"testp", "finite infinite number notanumber normal subnormal", "da", testp},
    {"selp", "", "daap", step<select_step>},
    {"mov", "", "da", move},
    {"cvta", "to global shared local param const", "da", step<move_step>},
    {"cvt", "rn rz rm rp rni rzi rmi rpi rna tf32 ftz sat", "da~a", convert},
    // memory
    {"ld", MEMORY, "dm", load_of},
    {"ldu", MEMORY, "dm", load_of},
    {"st", MEMORY, "ma", store_of},
    {"atom", MEMORY " add min max exch cas and or xor inc dec noftz acq_rel", "dma~a", atom},
    {"red", MEMORY " add min max and or xor inc dec noftz acq_rel", "ma", atom},
    {"cp.commit_group", "async", "", step<commit_step>},
    {"cp.wait_group", "async", "a", step<wait_group_step>},
    {"cp.wait_all", "async", "", step<wait_all_step>},
    {"cp.async", "cg ca shared shared::cta global L2::128B L2::64B L2::256B", "mma~a", step<copy_step>},
    {"prefetch", "global L1 L2", "~m", step<nothing_step>},
    {"membar", "gl cta sys", "", step<nothing_step>},
    {"fence", "sc acq_rel cta gpu sys", "", step<nothing_step>},
    // control
    {"bra", "uni", "~l", step<branch_step>},
    {"ret", "uni", "", step<exit_step>},
    {"exit", "", "", step<exit_step>},
    {"trap", "", "", step<trap_step>},
    {"brkpt", "", "", step<trap_step>},
    {"nanosleep", "", "a", step<nothing_step>},
    {"bar.warp", "sync", "a", together<sync_together>},
    {"bar", "sync cta", "a", step<barrier_step>},
    {"barrier", "sync cta aligned", "a", step<barrier_step>},
    // operations of a warp
    {"activemask", "", "d", step<active_step>},
    {"shfl", "sync up down bfly idx", "daaa~a", shuffle},
    {"vote", "sync ballot any all uni", "dp~a", vote},
    {"redux", "sync add min max and or xor", "daa", redux},
    {"ldmatrix", "sync aligned m8n8 x1 x2 x4 trans shared shared::cta", "dm", ldmatrix},
    {"mma", "sync aligned row col m16n8k16 m16n8k8 m16n8k4 m8n8k4 tf32", "daaa", mma},
};

const Row* row_of(const Words& words) {
    for (auto& row : TABLE) { // rows of two words stand before those of their first word alone
        string name = row.name, first = words.all[0];
        if (name == first) return &row;
        if (name.compare(0, first.size() + 1, first + ".") == 0 && words.has(name.substr(first.size() + 1))) return &row;
    }
    return nullptr;
}

} // namespace ptx
