// A build without the CUDA half links this in place of its kernels. No stream of a CUDA device exists there, so a call
// is a bug.
#include "kernels/cuda/cuda_table.hpp"
#include "tessera/base/error.hpp"

namespace tessera::kernels::cuda {
namespace {

[[noreturn]] void refuse() { throw InternalError("a CUDA kernel was asked for in a build without the CUDA half"); }

}  // namespace

void cast(void*, const CastArguments&) { refuse(); }
void accumulate(void*, const AccumulateArguments&) { refuse(); }
void divide(void*, float*, float, std::size_t) { refuse(); }
void fill_negative_zero(void*, void*, Format, std::size_t) { refuse(); }
void sum_of_squares(void*, const NormArguments&, double*, double*) { refuse(); }
void exact_squares(void*, const NormArguments&, ExactSquares*, ExactSquares*) { refuse(); }
void encode(void*, const CastArguments&) { refuse(); }
void decode(void*, const CastArguments&) { refuse(); }
void ranked_sum(void*, const RankedSumArguments&, bool) { refuse(); }
void strided_ranked_sum(void*, const RankedSumArguments&, const StridedContributions&, bool) { refuse(); }
void adamw(void*, const AdamWSpans&, std::span<const AdamWRun>, float, const StepScalars*) { refuse(); }
void adamw8bit(void*, const AdamW8bitSpans&, std::span<const AdamWRun>, float, const StepScalars*) { refuse(); }
void root_scaled(void*, const RootScaledSpans&, std::span<const RootScaledRun>, float, const StepScalars*) { refuse(); }
void sgd(void*, const SgdSpans&, std::span<const SgdRun>, float, const StepScalars*) { refuse(); }
void outer_update(void*, const OuterSpans&, const OuterSettings&) { refuse(); }
void muon_direction(void*, const MuonSpans&, const MuonSettings&, const StepScalars*) { refuse(); }
void muon_apply(void*, float*, const bf16*, std::size_t, const MuonStep&, const StepScalars*) { refuse(); }
void divide_by_norm(void*, const NormedMatrices&) { refuse(); }
void combine(void*, const Combination&) { refuse(); }
void round_stochastically(void*, const RoundedSpans&, const StepScalars*) { refuse(); }
void begin_update(void*, StepScalars*, const NormPartials&, const StepSettings&) { refuse(); }
void set_part(void*, StepPart*, const StepPart&) { refuse(); }
void set_weights(void*, double*, const FewWeights&) { refuse(); }
void set_scalars(void*, StepScalars*, const StepScalars&) { refuse(); }
void touch(void*, std::byte*, std::byte*, bool) { refuse(); }

}  // namespace tessera::kernels::cuda
