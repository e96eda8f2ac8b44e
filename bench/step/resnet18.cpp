// The residual network of 18 layers of models/vision.
#include "step/images.hpp"

namespace bench {

namespace {

template <typename T>
using Resnet18Subject = ImageSubject<T, models::VisionModelKind::resnet18>;

}  // namespace

const char* const model_name = "resnet18";

StepOptions default_options() { return {.batch = 16, .width = 64, .side = 32}; }

StepTimes train(tessera::World& world, const StepOptions& options) { return train_in<Resnet18Subject>(world, options); }

Products products(const StepOptions&) { return {}; }

}  // namespace bench
