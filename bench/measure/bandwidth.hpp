// Memory's own rates are the ceilings that kernels and collectives are held against. Plain loops measure them on the
// calling thread, compiled for the machine that builds them.
#pragma once

#include <cstddef>

namespace bench {

// Pointers are aligned to 64 bytes, and counts are multiples of 16 elements.
struct Triad {  // a[i] = b[i] + s * c[i]: 12 bytes per element
  float* a;
  const float* b;
  const float* c;
  float s;
  std::size_t count;
};
void triad(const Triad& of);            // ordinary stores
void triad_streaming(const Triad& of);  // stores past the caches

float read_all(const float* data, std::size_t count);  // the sum, so that nothing is left out

void copy_streaming(float* to, const float* from, std::size_t count);

// to[i] = parts[0][i] + parts[1][i] + …, each read once.
struct Sum {
  float* to;
  const float* const* parts;
  std::size_t ranks;
  std::size_t count;
};
void sum(const Sum& of);
void sum_streaming(const Sum& of);

}  // namespace bench
