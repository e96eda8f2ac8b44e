// Correct answers, pass by pass.
#include "train_mlp/evaluation.hpp"

#include <cmath>

namespace examples {

namespace nn = tessera::nn;

template <typename T>
Evaluation<T>::Evaluation(const HeldOut& held_out, tessera::World& world, std::size_t rows)
    : held_out_(held_out), world_(world), slice_(held_out.count, world, rows) {}

template <typename T>
EvaluationResult Evaluation<T>::run(Mlp<T>& mlp, tessera::FullyShard& model) {
  double correct = 0.0;
  for (std::size_t pass = 0; pass < slice_.passes(); ++pass) {
    count(slice_.samples(pass, held_out_.first), mlp, model);
    correct += correct_.values().front();
  }
  const double all = world_.sum(correct, "correct held-out samples");
  return {static_cast<std::size_t>(std::llround(all)), held_out_.count};
}

template <typename T>
void Evaluation<T>::count(const tessera::SampleBatch& chosen, Mlp<T>& mlp, tessera::FullyShard& model) {
  held_out_.source->read(chosen, batch_);
  nn::CrossEntropyRows<T> answer;
  tessera::Stream& stream = model.stream();
  const std::span<const float> features = features_.put(stream, batch_.features);
  answer.logits = mlp.evaluate(model, {features.data(), batch_.rows, batch_.columns});
  answer.labels = labels_.put(stream, batch_.labels).data();
  nn::count_correct<T>(stream, answer, correct_.at(stream));
  correct_.fetch(stream);
  model.synchronize();
}

template class Evaluation<float>;
template class Evaluation<tessera::bf16>;
template class Evaluation<tessera::fp16>;

}  // namespace examples
