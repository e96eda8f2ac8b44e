// cuDNN computes convolutions wherever it is.
#include "vision/src/cuda/convolution_choice.hpp"

#include <fmt/format.h>

#include "nn/src/choice.hpp"

namespace tessera::vision::cuda::convolutions {

namespace {

std::string why_not_cudnn() {
  const std::string& missing = convolution_library().missing;
  return missing.empty() ? "" : fmt::format(" (cudnn: {})", missing);
}

Choice<Set>& set_choice() {
  static Choice<Set> choice({.variable = "TESSERA_CUDA_CONVOLUTIONS",
                             .what = "convolutions",
                             .verb = "are",
                             .available = available(),
                             .remark = why_not_cudnn()});
  return choice;
}

// Libraries take for granted vectors of 16 bytes, and places that 32 bits with a sign can count.
bool may_be_asked(const LibraryConvolution& a) {
  constexpr std::size_t most = std::size_t{1} << 31;
  for (const void* const data : {a.images, a.weights, a.results}) {
    if (alignment_of(data) < 16) return false;
  }
  return a.of.images > 0 && a.of.images * a.of.x_of_image() < most && a.of.images * a.of.y_of_image() < most;
}

}  // namespace

std::string_view to_string(Set set) { return set == Set::cudnn ? "cudnn" : "products"; }

std::vector<Set> available() {
  std::vector<Set> sets{Set::products};
  if (convolution_library().missing.empty()) sets.push_back(Set::cudnn);
  return sets;
}

Set active() { return set_choice().active(); }
void select(Set set) { set_choice().select(set); }

std::string in_words() {
  if (active() == Set::products) return "as products" + why_not_cudnn();
  return "by " + convolution_library().in_words;
}

std::size_t library_workspace_bytes() { return active() == Set::cudnn ? std::size_t{32} << 20 : 0; }

bool by_library(void* native, const LibraryConvolution& operation) {
  return active() == Set::cudnn && may_be_asked(operation) && convolution_library().run(native, operation);
}

}  // namespace tessera::vision::cuda::convolutions
