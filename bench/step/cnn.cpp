// The small convolutional network of models/vision.
#include "step/images.hpp"

namespace bench {

namespace {

template <typename T>
using CnnSubject = ImageSubject<T, models::VisionModelKind::cnn>;

}  // namespace

const char* const model_name = "cnn";

StepOptions default_options() { return {.batch = 64, .width = 32, .side = 28}; }

StepTimes train(tessera::World& world, const StepOptions& options) { return train_in<CnnSubject>(world, options); }

Products products(const StepOptions&) { return {}; }

}  // namespace bench
