// The kernels of CUDA devices. Each enqueues on `native`, a cudaStream_t, from a task of its stream; pointers are the
// device's. Arguments are those of the CPU's table, and elementwise results have the same bits.
#pragma once

#include <cstddef>
#include <span>

#include "kernels/kernel_table.hpp"
#include "tessera/kernels/adamw8bit.hpp"
#include "tessera/kernels/muon.hpp"
#include "tessera/kernels/optimizer.hpp"
#include "tessera/kernels/reduce.hpp"
#include "tessera/kernels/rounding.hpp"
#include "tessera/kernels/step_scalars.hpp"

namespace tessera::kernels::cuda {

void cast(void* native, const CastArguments& a);  // of different formats
void encode(void* native, const CastArguments& a);
void decode(void* native, const CastArguments& a);
void accumulate(void* native, const AccumulateArguments& a);
void divide(void* native, float* data, float divisor, std::size_t count);
void fill_negative_zero(void* native, void* data, Format format, std::size_t count);

// `lanes`: room for norm_lanes doubles, for this sum alone until it has run.
void sum_of_squares(void* native, const NormArguments& a, double* lanes, double* result);

// `partials`: room for so many, for this sum alone until it has run.
inline constexpr std::size_t most_exact_partials = 1024;
void exact_squares(void* native, const NormArguments& a, ExactSquares* partials, ExactSquares* result);

// contribution r is at contributions[r]; more ranks than `most_contributions` need the strided form. a.format is not
// read where they are blocks of codes.
inline constexpr std::size_t most_contributions = 64;
void ranked_sum(void* native, const RankedSumArguments& a, bool of_codes);
// a.contributions is not read.
void strided_ranked_sum(void* native, const RankedSumArguments& a, const StridedContributions& contributions,
                        bool of_codes);

void adamw(void* native, const AdamWSpans& spans, std::span<const AdamWRun> runs, float learning_rate,
           const StepScalars* scalars);
void adamw8bit(void* native, const AdamW8bitSpans& spans, std::span<const AdamWRun> runs, float learning_rate,
               const StepScalars* scalars);
void sgd(void* native, const SgdSpans& spans, std::span<const SgdRun> runs, float learning_rate,
         const StepScalars* scalars);
void root_scaled(void* native, const RootScaledSpans& spans, std::span<const RootScaledRun> runs, float learning_rate,
                 const StepScalars* scalars);
void outer_update(void* native, const OuterSpans& spans, const OuterSettings& settings);

void muon_direction(void* native, const MuonSpans& spans, const MuonSettings& settings, const StepScalars* scalars);
void muon_apply(void* native, float* master, const bf16* direction, std::size_t count, const MuonStep& step,
                const StepScalars* scalars);
void divide_by_norm(void* native, const NormedMatrices& of);
void combine(void* native, const Combination& of);

void round_stochastically(void* native, const RoundedSpans& spans, const StepScalars* scalars);

void begin_update(void* native, StepScalars* scalars, const NormPartials& partials, const StepSettings& settings);
void set_part(void* native, StepPart* part, const StepPart& value);
// So many weights of granules are carried by one task.
struct FewWeights {
  static constexpr std::size_t most = 16;
  std::size_t count;
  double weight[most];
};
void set_weights(void* native, double* places, const FewWeights& few);
void set_scalars(void* native, StepScalars* scalars, const StepScalars& values);

// Reads the two bytes, and writes them back when `write`: the touch test mode.
void touch(void* native, std::byte* first, std::byte* last, bool write);

}  // namespace tessera::kernels::cuda
