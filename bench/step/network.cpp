// A network of models/vision, whose name is the build's NETWORK.
#include "step/images.hpp"

namespace bench {

namespace {

constexpr auto kind = models::VisionModelKind::NETWORK;
constexpr bool is_small = kind == models::VisionModelKind::cnn;

template <typename T>
using Subject = ImageSubject<T, kind>;

}  // namespace

const char* const model_name = is_small ? "cnn" : "resnet18";

StepOptions default_options() {
  return is_small ? StepOptions{.batch = 64, .width = 32, .side = 28}
                  : StepOptions{.batch = 16, .width = 64, .side = 32};
}

StepTimes train(tessera::World& world, const StepOptions& options) { return train_in<Subject>(world, options); }

Products products(const StepOptions&) { return {}; }

}  // namespace bench
