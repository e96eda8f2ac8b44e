// The CPU kernels of one instruction set, as plain functions on plain arguments. The files compiled with that set's
// flags include this and nothing of the standard library that has code: a shared inline function compiled with AVX
// flags could be the copy that the linker keeps for everybody, and a machine without AVX would die in it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tessera/kernels/accumulate.hpp"
#include "tessera/kernels/exact_squares.hpp"

namespace tessera::kernels {

enum class Format { fp32, bf16, fp16 };  // DType, without its header

struct CastArguments {
  void* to;
  Format to_format;
  const void* from;
  Format from_format;
  std::size_t count;
};

struct AccumulateArguments {
  float* to;
  const void* from;
  Format from_format;
  std::size_t count;
};

struct RankedSumArguments {
  const void* const* contributions;
  std::size_t ranks;  // at least 1
  Format format;
  float* result;
  std::size_t count;
  Accumulate accumulate;
  float divisor;
};

struct NormArguments {
  const void* data;
  Format format;
  std::size_t count;
};

struct AdamWRule {
  float gradient_factor;
  float learning_rate;
  float beta1;
  float beta2;
  float epsilon;
  float weight_decay;
  float first_correction;   // 1 - beta1^t
  float second_correction;  // 1 - beta2^t
  bool coupled;             // the decay is the gradient's
};

struct AdamWArguments {
  float* master;
  float* first_moment;
  float* second_moment;
  const void* gradient;
  Format gradient_format;
  std::size_t count;
  AdamWRule rule;
  void* rounded;          // the new masters once more; null: nowhere
  Format rounded_format;  // bf16 or fp16
};

struct DynamicMap;
struct AdamW8bitArguments {
  float* master;
  std::uint8_t* first_codes;
  float* first_scales;
  std::uint8_t* second_codes;
  float* second_scales;
  const void* gradient;
  Format gradient_format;
  std::size_t count;
  void* rounded;  // as AdamW's
  Format rounded_format;
};

struct SgdArguments {
  float* master;
  float* velocity;  // null: no momentum
  const void* gradient;
  Format gradient_format;
  std::size_t count;
  float gradient_factor;
  float learning_rate;
  float momentum;
  float weight_decay;
  float kept;  // of the gradient beside the velocity: 1 - dampening
  bool nesterov;
  void* rounded;  // as AdamW's
  Format rounded_format;
};

struct RootScaledArguments {
  float* master;
  float* squares;
  float* mean;      // null: not centred
  float* velocity;  // null: no momentum
  const void* gradient;
  Format gradient_format;
  std::size_t count;
  float gradient_factor;
  float learning_rate;  // of the step, its decay included
  float decay;
  float rest;
  float epsilon;
  float weight_decay;
  float initial;
  float momentum;
  void* rounded;  // as AdamW's
  Format rounded_format;
};

struct RoundArguments {  // as kernels/rounding.hpp has them
  std::uint16_t* to;
  const float* from;
  std::size_t count;
  std::uint32_t key[2];
  std::uint64_t first;
  std::uint64_t step;
};

struct KernelTable {
  void (*cast)(const CastArguments&);  // of different formats
  void (*copy)(void* to, const void* from, std::size_t bytes);
  void (*accumulate)(const AccumulateArguments&);
  void (*divide)(float* data, float divisor, std::size_t count);
  // Adds the sum of each block's squares to its fp64 lane (norm.hpp), of the lanes first … last - 1.
  void (*add_blocks)(const NormArguments&, std::size_t first, std::size_t last, double* lane);
  ExactSquares (*exact_squares)(const NormArguments&);
  // To and from blocks of codes (DType::int8), whose format is not read; count: of whole blocks.
  void (*encode)(const CastArguments&);
  void (*decode)(const CastArguments&);
  void (*ranked_sum)(const RankedSumArguments&);
  void (*ranked_sum_of_codes)(const RankedSumArguments&);  // likewise
  void (*adamw)(const AdamWArguments&);
  void (*adamw8bit)(const AdamW8bitArguments&, const AdamWRule&, const DynamicMap& first, const DynamicMap& second);
  void (*sgd)(const SgdArguments&);
  void (*root_scaled)(const RootScaledArguments&);
  void (*round)(const RoundArguments&);
};

const KernelTable& portable_table();
const KernelTable& avx2_table();
const KernelTable& avx512_table();

}  // namespace tessera::kernels
