// Attention's kernels are chosen here, and the library is called part by part.
#include "src/cuda/attention_choice.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "src/choice.hpp"
#include "src/cuda/fused_attention.hpp"
#include "src/cuda/product.hpp"

namespace tessera::nn::cuda::attentions {

namespace {

constexpr std::size_t most_probabilities = std::size_t{256} << 20;  // bytes of one call's, if more than a head
constexpr std::size_t spare_bytes = std::size_t{16} << 20;          // for what else the library keeps

std::string why_not() {
  const std::string& missing = fused_attention_library().missing;
  return missing.empty() ? "" : fmt::format(" (cudnn: {})", missing);
}

Choice<Set>& choice_of_attention() {
  static Choice<Set> made({.variable = "TESSERA_ATTENTION",
                           .what = "attention",
                           .verb = "is",
                           .available = available(),
                           .remark = why_not()});
  return made;
}

// True for what the library takes, as far as it is known before it is asked.
bool may_be_fused(const AttentionTiles& a) {
  return active() == Set::cudnn && a.format != Format::fp32 && a.mask.drop_below == 0 && a.causal &&
         a.queries == a.sequence && a.sequence > 1 && a.sequences != 0 && a.head_dim % 8 == 0;
}

// On an H100 the library's deterministic backward pass is slower than own kernels in heads of 64, by a sixth over 1,024
// rows and by more than a third over 4,096, and faster in heads of 128 (docs/benchmarks/gpu-h100.md).
bool may_be_fused_backward(const AttentionTiles& a) { return may_be_fused(a) && a.head_dim > 64; }

// How many sequences, and heads of them, one call computes: all heads, or heads of one sequence.
struct Share {
  std::size_t sequences;
  std::size_t heads;
};

constexpr std::size_t rounded_up(std::size_t count, std::size_t unit) { return (count + unit - 1) / unit * unit; }

// Returns at most `most`, but so that the last call has about as many as the others.
constexpr std::size_t evened(std::size_t count, std::size_t most) {
  const std::size_t calls = (count + most - 1) / most;
  return (count + calls - 1) / calls;
}

// Returns the bytes of one head in backward: probabilities, sums of its rows, and room for its gradients in fp32.
std::size_t head_bytes(const AttentionTiles& a) {
  const std::size_t rows = rounded_up(a.sequence, 128);
  return rows * rows * 2 + rows * (a.head_dim + 1) * sizeof(float);
}

Share share_of_backward(const AttentionTiles& a) {
  const std::size_t fitting = std::max<std::size_t>(1, most_probabilities / head_bytes(a));
  if (fitting < a.heads) return {1, evened(a.heads, fitting)};
  return {evened(a.sequences, std::min(a.sequences, fitting / a.heads)), a.heads};
}

// Half of it; none of what cannot be divided.
std::optional<Share> halved(const Share& share) {
  if (share.sequences > 1) return Share{(share.sequences + 1) / 2, share.heads};
  if (share.heads > 1) return Share{1, (share.heads + 1) / 2};
  return std::nullopt;
}

// One after the other, the calls of a pass.
class Calls {
 public:
  Calls(const AttentionTiles& tiles, bool backward) : a_(tiles), backward_(backward) {}

  // function(operation) for each call; false as soon as it returns false.
  template <typename Function>
  bool for_each(const Share& share, Function function) const {
    for (std::size_t sequence = 0; sequence < a_.sequences; sequence += share.sequences) {
      const std::size_t sequences = std::min(share.sequences, a_.sequences - sequence);
      for (std::size_t head = 0; head < a_.heads; head += share.heads) {
        const Share now{sequences, std::min(share.heads, a_.heads - head)};
        if (!function(operation({sequence, head}, now))) return false;
      }
    }
    return true;
  }

 private:
  // A call begins with these.
  struct First {
    std::size_t sequence;
    std::size_t head;
  };

  // In rows of so many parts, of which one is wanted: of q, k and v, or of one alone.
  Heads heads_of(const void* data, std::size_t parts, std::size_t part, const First& first) const {
    constexpr std::size_t element_bytes = 2;
    const std::size_t dim = a_.heads * a_.head_dim;
    const std::size_t begin = first.sequence * a_.sequence * parts * dim + part * dim + first.head * a_.head_dim;
    return {.data = static_cast<const char*>(data) + begin * element_bytes,
            .sequence_stride = a_.sequence * parts * dim,
            .head_stride = a_.head_dim,
            .row_stride = parts * dim};
  }

  FusedAttention operation(const First& first, const Share& share) const {
    float* const statistics =
        a_.statistics == nullptr ? nullptr : a_.statistics + (first.sequence * a_.heads + first.head) * a_.sequence;
    FusedAttention result{.format = a_.format,
                          .backward = backward_,
                          .sequences = share.sequences,
                          .heads = share.heads,
                          .rows = a_.sequence,
                          .head_dim = a_.head_dim,
                          .scale = a_.scale,
                          .q = heads_of(a_.qkv, 3, 0, first),
                          .k = heads_of(a_.qkv, 3, 1, first),
                          .v = heads_of(a_.qkv, 3, 2, first),
                          .out = heads_of(a_.out, 1, 0, first),
                          .statistics = statistics,
                          .workspace = a_.scratch};
    if (!backward_) return result;
    result.dout = heads_of(a_.dout, 1, 0, first);
    result.dq = heads_of(a_.dqkv, 3, 0, first);
    result.dk = heads_of(a_.dqkv, 3, 1, first);
    result.dv = heads_of(a_.dqkv, 3, 2, first);
    return result;
  }

  const AttentionTiles& a_;
  bool backward_;
};

// The library takes for granted that tensors begin on vectors of 16 bytes. Every call's do when the whole ones do,
// because a head has a multiple of 8 elements of 2 bytes.
bool are_aligned(const AttentionTiles& a) {
  const auto is_aligned = [](const void* data) { return alignment_of(data) >= 16; };
  return is_aligned(a.qkv) && is_aligned(a.out) && is_aligned(a.dout) && is_aligned(a.dqkv);
}

// Whether the library did it: in calls whose workspace fits the scratch memory, or not at all.
bool run_fused(void* native, const AttentionTiles& a, bool backward, std::optional<Share> share) {
  if (!are_aligned(a)) return false;
  const FusedAttentionLibrary& library = fused_attention_library();
  const Calls calls(a, backward);
  bool known = true;
  const auto fits = [&](const FusedAttention& operation) {
    const std::optional<std::size_t> bytes = library.workspace_bytes(operation);
    known = bytes.has_value();
    return known && *bytes <= operation.workspace.bytes;
  };
  while (share && !calls.for_each(*share, fits)) {
    if (!known) return false;
    share = halved(*share);
  }
  return share && calls.for_each(*share, [&](const FusedAttention& operation) {
    library.run(native, operation);
    return true;
  });
}

}  // namespace

std::string_view to_string(Set set) { return set == Set::cudnn ? "cudnn" : "own"; }

std::vector<Set> available() {
  std::vector<Set> sets{Set::own};
  if (fused_attention_library().missing.empty()) sets.push_back(Set::cudnn);
  return sets;
}

Set active() { return choice_of_attention().active(); }
void select(Set set) { choice_of_attention().select(set); }

std::string in_words() {
  if (active() == Set::own) return "by own kernels" + why_not();
  return fmt::format("of bf16 and fp16 by {} where nothing is dropped, all else by own kernels",
                     fused_attention_library().in_words);
}

std::size_t forward_scratch_bytes(const AttentionTiles& a) { return may_be_fused(a) ? spare_bytes : 0; }

std::size_t backward_scratch_bytes(const AttentionTiles& a) {
  const std::size_t deltas = a.sequences * a.heads * a.sequence * sizeof(float);
  if (!may_be_fused_backward(a)) return deltas;
  const Share share = share_of_backward(a);
  return std::max(deltas, share.sequences * share.heads * head_bytes(a) + spare_bytes);
}

void forward(void* native, const AttentionTiles& a) {
  if (may_be_fused(a) && run_fused(native, a, false, Share{a.sequences, a.heads})) return;
  attention_forward(native, a);
}

void backward(void* native, const AttentionTiles& a) {
  if (may_be_fused_backward(a) && run_fused(native, a, true, share_of_backward(a))) return;
  attention_backward(native, a);
}

}  // namespace tessera::nn::cuda::attentions
