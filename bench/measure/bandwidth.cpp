// The loops. Compiled with -march=native: a ceiling has no reason to run elsewhere.
#include "measure/bandwidth.hpp"

#if defined(__SSE__)
#include <immintrin.h>
#endif

#include <cstring>

namespace bench {

namespace {

constexpr std::size_t lanes = 16;
typedef float Vector __attribute__((vector_size(lanes * sizeof(float))));  // NOLINT(modernize-use-using)

Vector get(const float* from) {
  Vector value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

struct Ordinary {
  static void put(float* to, const Vector& value) { std::memcpy(to, &value, sizeof value); }
  static void end() {}
};

#if defined(__SSE__)
struct Streaming {
  static void put(float* to, const Vector& value) {
    float parts[lanes];
    std::memcpy(parts, &value, sizeof value);
    for (std::size_t i = 0; i < lanes; i += 4) _mm_stream_ps(to + i, _mm_loadu_ps(parts + i));
  }
  static void end() { _mm_sfence(); }
};
#else
using Streaming = Ordinary;
#endif

template <typename Store>
void triad_with(const Triad& of) {
  for (std::size_t i = 0; i < of.count; i += lanes) Store::put(of.a + i, get(of.b + i) + of.s * get(of.c + i));
  Store::end();
}

template <typename Store>
void sum_with(const Sum& of) {
  for (std::size_t i = 0; i < of.count; i += lanes) {
    Vector total = get(of.parts[0] + i);
    for (std::size_t rank = 1; rank < of.ranks; ++rank) total += get(of.parts[rank] + i);
    Store::put(of.to + i, total);
  }
  Store::end();
}

}  // namespace

void triad(const Triad& of) { triad_with<Ordinary>(of); }
void triad_streaming(const Triad& of) { triad_with<Streaming>(of); }

float read_all(const float* data, std::size_t count) {
  constexpr std::size_t chains = 4;
  Vector sums[chains] = {};
  std::size_t i = 0;
  for (; i + chains * lanes <= count; i += chains * lanes) {
    for (std::size_t k = 0; k < chains; ++k) sums[k] += get(data + i + k * lanes);
  }
  for (; i < count; i += lanes) sums[0] += get(data + i);
  const Vector all = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  float total = 0.0f;
  for (std::size_t k = 0; k < lanes; ++k) total += all[k];
  return total;
}

void copy_streaming(float* to, const float* from, std::size_t count) {
  for (std::size_t i = 0; i < count; i += lanes) Streaming::put(to + i, get(from + i));
  Streaming::end();
}

void sum(const Sum& of) { sum_with<Ordinary>(of); }
void sum_streaming(const Sum& of) { sum_with<Streaming>(of); }

}  // namespace bench
