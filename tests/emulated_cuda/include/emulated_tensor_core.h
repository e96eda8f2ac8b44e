// The instructions of tensor_core.cuh on the CPU. A warp's last lane to come works for all of them, each reads its own
// row, and a copy happens when it is waited for, over rubbish from its start: a missing wait or barrier of a kernel
// shows.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>

#include "cuda_bf16.h"
#include "cuda_fp16.h"
#include "cuda_runtime.h"

namespace emulated {

inline void require_aligned(const void* data, std::size_t bytes, const char* instruction) {
  if (reinterpret_cast<std::uintptr_t>(data) % bytes == 0) return;
  fail((std::string(instruction) + " must have addresses on " + std::to_string(bytes) + " bytes").c_str());
}

// work(of) runs once, when all lanes of the warp have come; of(lane) is what each of them showed.
template <typename Lane, typename Work>
void once_for_warp(Lane& own, const Work&) {
  const Unwatched internals;
  meet_warp(0xffffffffu, &own, [](Shown lanes) {
    for (const void* const each : lanes) {
      if (each == nullptr) fail("an instruction of tensor cores takes all lanes of a warp");
    }
    Work{}([&lanes](unsigned lane) -> Lane& { return *static_cast<Lane*>(lanes[lane]); });
  });
}

template <typename T>
float number(unsigned pair, unsigned which) {
  return tessera::nn::cuda::to_float(std::bit_cast<T>(static_cast<std::uint16_t>(pair >> 16 * which)));
}

}  // namespace emulated

namespace tessera::nn::cuda {

template <bool transposed>
void load_matrices(unsigned (&to)[4], const void* row) {
  struct Lane {
    std::uint16_t row[8];
    unsigned* to;
  } own{{}, to};
  ::emulated::require_aligned(row, 16, "ldmatrix");
  std::memcpy(own.row, row, sizeof(own.row));
  ::emulated::once_for_warp(own, [](const auto& of) {
    for (unsigned lane = 0; lane < 32; ++lane) {
      const unsigned g = lane / 4;
      const unsigned t = lane % 4;
      for (unsigned tile = 0; tile < 4; ++tile) {
        const auto element = [&](unsigned r, unsigned c) -> unsigned { return of(8 * tile + r).row[c]; };
        const unsigned first = transposed ? element(2 * t, g) : element(g, 2 * t);
        const unsigned second = transposed ? element(2 * t + 1, g) : element(g, 2 * t + 1);
        of(lane).to[tile] = second << 16 | first;
      }
    }
  });
}

template <typename T>
void multiply_add(float (&sums)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  struct Lane {
    float* sums;
    const unsigned* a;
    unsigned b[2];
  } own{sums, a, {b0, b1}};
  ::emulated::once_for_warp(own, [](const auto& of) {
    float left[16][16];
    float right[16][8];
    for (unsigned lane = 0; lane < 32; ++lane) {
      const unsigned g = lane / 4;
      const unsigned t = lane % 4;
      for (unsigned i = 0; i < 2; ++i) {
        for (unsigned part = 0; part < 4; ++part) {
          left[g + part % 2 * 8][2 * t + i + part / 2 * 8] = ::emulated::number<T>(of(lane).a[part], i);
        }
        for (unsigned part = 0; part < 2; ++part) {
          right[2 * t + i + part * 8][g] = ::emulated::number<T>(of(lane).b[part], i);
        }
      }
    }
    for (unsigned lane = 0; lane < 32; ++lane) {
      for (unsigned i = 0; i < 4; ++i) {
        const unsigned row = lane / 4 + i / 2 * 8;
        const unsigned column = lane % 4 * 2 + i % 2;
        for (unsigned k = 0; k < 16; ++k) of(lane).sums[i] += left[row][k] * right[k][column];
      }
    }
  });
}

template <typename T>
unsigned pair_of(float first, float second) {
  const T elements[2] = {to_element<T>(first), to_element<T>(second)};
  unsigned pair = 0;
  std::memcpy(&pair, elements, sizeof(pair));
  return pair;
}

template <int bytes>
void copy_async(void* to, const void* from, bool exists) {
  ::emulated::require_aligned(to, bytes, "cp.async");
  ::emulated::require_aligned(from, bytes, "cp.async");
  std::memset(to, 0xff, bytes);
  ::emulated::self().copies.push_back({to, exists ? from : nullptr, bytes});
}

inline void await_copies() {
  for (const ::emulated::Copy& copy : ::emulated::self().copies) {
    if (copy.from == nullptr) std::memset(copy.to, 0, copy.bytes);
    if (copy.from != nullptr) std::memcpy(copy.to, copy.from, copy.bytes);
  }
  ::emulated::self().copies.clear();
}

inline float power_of_two(float x) { return std::exp2(x); }

}  // namespace tessera::nn::cuda
