// Sixteen elements at a time, in the vector extensions of GCC and Clang: as many native vectors as an instruction set
// needs for them, in pairs of pairs. Types differ between sets and every function is inlined, so that no code compiled
// with one set's flags is shared with another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

namespace tessera::nn {

inline constexpr std::size_t lane_count = 16;

template <typename Element, std::size_t count>
struct NativeOf {
  typedef Element type __attribute__((vector_size(count * sizeof(Element))));  // NOLINT(modernize-use-using)
};

template <typename Half>
struct Pair {
  Half low;
  Half high;
};

template <typename Element, std::size_t native_count, std::size_t count = lane_count>
struct LanesOf {
  using type = Pair<typename LanesOf<Element, native_count, count / 2>::type>;
};
template <typename Element, std::size_t native_count>
struct LanesOf<Element, native_count, native_count> {
  using type = typename NativeOf<Element, native_count>::type;
};

template <typename V>
inline constexpr bool is_pair = false;
template <typename Half>
inline constexpr bool is_pair<Pair<Half>> = true;

// ---- native vectors have these operators already ----

template <typename Half>
[[gnu::always_inline]] inline Pair<Half> operator+(const Pair<Half>& a, const Pair<Half>& b) {
  return {a.low + b.low, a.high + b.high};
}
template <typename Half>
[[gnu::always_inline]] inline Pair<Half> operator-(const Pair<Half>& a, const Pair<Half>& b) {
  return {a.low - b.low, a.high - b.high};
}
template <typename Half>
[[gnu::always_inline]] inline Pair<Half> operator*(const Pair<Half>& a, const Pair<Half>& b) {
  return {a.low * b.low, a.high * b.high};
}
template <typename Half>
[[gnu::always_inline]] inline Pair<Half> operator/(const Pair<Half>& a, const Pair<Half>& b) {
  return {a.low / b.low, a.high / b.high};
}
template <typename Half>
[[gnu::always_inline]] inline Pair<Half> operator&(const Pair<Half>& a, const Pair<Half>& b) {
  return {a.low & b.low, a.high & b.high};
}
template <typename Half>
[[gnu::always_inline]] inline Pair<Half> operator|(const Pair<Half>& a, const Pair<Half>& b) {
  return {a.low | b.low, a.high | b.high};
}
template <typename Half>
[[gnu::always_inline]] inline Pair<Half> operator^(const Pair<Half>& a, const Pair<Half>& b) {
  return {a.low ^ b.low, a.high ^ b.high};
}
template <typename Half>
[[gnu::always_inline]] inline Pair<Half> operator<<(const Pair<Half>& a, int bits) {
  return {a.low << bits, a.high << bits};
}
template <typename Half>
[[gnu::always_inline]] inline Pair<Half> operator>>(const Pair<Half>& a, int bits) {
  return {a.low >> bits, a.high >> bits};
}
template <typename Half>
[[gnu::always_inline]] inline Pair<Half> operator~(const Pair<Half>& a) {
  return {~a.low, ~a.high};
}
template <typename Half>
[[gnu::always_inline]] inline auto operator<(const Pair<Half>& a, const Pair<Half>& b) {
  return Pair<decltype(a.low < b.low)>{a.low < b.low, a.high < b.high};
}
template <typename Half>
[[gnu::always_inline]] inline auto operator<=(const Pair<Half>& a, const Pair<Half>& b) {
  return Pair<decltype(a.low <= b.low)>{a.low <= b.low, a.high <= b.high};
}

// ---- for both ----

// mask ? a : b in each lane, with the mask of a comparison.
template <typename Mask, typename V>
[[gnu::always_inline]] inline V select(const Mask& mask, const V& a, const V& b) {
  if constexpr (is_pair<V>) {
    return V{select(mask.low, a.low, b.low), select(mask.high, a.high, b.high)};
  } else {
    return mask ? a : b;
  }
}

template <typename V, typename Element>
[[gnu::always_inline]] inline V all(Element value) {
  if constexpr (is_pair<V>) {
    const auto half = all<decltype(V::low)>(value);
    return V{half, half};
  } else {
    return value - V{};
  }
}

// The same bits as another type, lane by lane.
template <typename To, typename From>
[[gnu::always_inline]] inline To bits_as(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  if constexpr (is_pair<To>) {
    return To{bits_as<decltype(To::low)>(from.low), bits_as<decltype(To::high)>(from.high)};
  } else {
    return reinterpret_cast<To>(from);
  }
}

// Lane by lane, as static_cast does.
template <typename To, typename From>
[[gnu::always_inline]] inline To converted(const From& from) {
  if constexpr (is_pair<To>) {
    return To{converted<decltype(To::low)>(from.low), converted<decltype(To::high)>(from.high)};
  } else {
    return __builtin_convertvector(from, To);
  }
}

template <typename V>
[[gnu::always_inline]] inline V load_lanes(const void* from) {
  if constexpr (is_pair<V>) {
    using Half = decltype(V::low);
    return V{load_lanes<Half>(from), load_lanes<Half>(static_cast<const char*>(from) + sizeof(Half))};
  } else {
    V value;
    __builtin_memcpy(&value, from, sizeof value);
    return value;
  }
}

template <typename V>
[[gnu::always_inline]] inline void store_lanes(void* to, const V& value) {
  if constexpr (is_pair<V>) {
    store_lanes(to, value.low);
    store_lanes(static_cast<char*>(to) + sizeof value.low, value.high);
  } else {
    __builtin_memcpy(to, &value, sizeof value);
  }
}

// The larger of both; b where either is a NaN.
template <typename V>
[[gnu::always_inline]] inline V larger(const V& a, const V& b) {
  return select(b < a, a, b);
}

struct Plus {
  template <typename V>
  [[gnu::always_inline]] static V of(const V& a, const V& b) {
    return a + b;
  }
};
struct Larger {
  template <typename V>
  [[gnu::always_inline]] static V of(const V& a, const V& b) {
    if constexpr (std::is_arithmetic_v<V>) return b < a ? a : b;
    if constexpr (!std::is_arithmetic_v<V>) return larger(a, b);
  }
};

template <typename V, std::size_t... lane>
[[gnu::always_inline]] inline auto halves_of(const V& v, std::index_sequence<lane...>) {
  using Half = typename NativeOf<std::remove_cvref_t<decltype(v[0])>, sizeof...(lane)>::type;
  return Pair<Half>{__builtin_shufflevector(v, v, lane...), __builtin_shufflevector(v, v, (lane + sizeof...(lane))...)};
}

// The lanes k and k + 8 are joined, then k and k + 4, then + 2, then + 1.
template <typename Join, typename V>
[[gnu::always_inline]] inline auto reduce(const V& v) {
  if constexpr (is_pair<V>) {
    return reduce<Join>(Join::of(v.low, v.high));
  } else if constexpr (sizeof(V) == 2 * sizeof(v[0])) {
    return Join::of(+v[0], +v[1]);
  } else {
    const auto halves = halves_of(v, std::make_index_sequence<sizeof(V) / sizeof(v[0]) / 2>{});
    return reduce<Join>(Join::of(halves.low, halves.high));
  }
}

template <typename V>
[[gnu::always_inline]] inline auto sum(const V& v) {
  return reduce<Plus>(v);
}

}  // namespace tessera::nn
