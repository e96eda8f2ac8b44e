// oneDNN computes convolutions wherever it is.
#include "vision/src/convolution/choice.hpp"

#include "nn/src/choice.hpp"
#include "vision/src/convolution/onednn.hpp"

namespace tessera::vision::convolutions {

namespace {

Choice<Set>& choice_of_convolutions() {
  static Choice<Set> made(
      {.variable = "TESSERA_CONVOLUTIONS", .what = "convolutions", .verb = "are", .available = available()});
  return made;
}

}  // namespace

std::string_view to_string(Set set) { return set == Set::onednn ? "onednn" : "products"; }

std::vector<Set> available() {
  std::vector<Set> sets{Set::products};
  if (by_onednn::convolves<float>()) sets.push_back(Set::onednn);
  return sets;
}

Set active() { return choice_of_convolutions().active(); }
void select(Set set) { choice_of_convolutions().select(set); }

}  // namespace tessera::vision::convolutions
