// Slices differ by one sample at most, so the longest slice decides the number of passes.
#include "train_mlp/evaluation.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace examples {

namespace nn = tessera::nn;

template <typename T>
Evaluation<T>::Evaluation(const HeldOut& held_out, tessera::World& world, std::size_t rows)
    : held_out_(held_out), world_(world), rows_(rows) {
  const auto ranks = static_cast<std::size_t>(world.size());
  const auto rank = static_cast<std::size_t>(world.rank());
  const auto begin = [&](std::size_t of_rank) { return held_out.first + held_out.count * of_rank / ranks; };
  first_ = begin(rank);
  end_ = begin(rank + 1);
  const std::size_t longest = (held_out.count + ranks - 1) / ranks;
  passes_ = (longest + rows - 1) / rows;
}

template <typename T>
EvaluationResult Evaluation<T>::run(Mlp<T>& mlp, tessera::FullyShard& model) {
  double correct = 0.0;
  for (std::size_t pass = 0; pass < passes_; ++pass) {
    const std::size_t first = std::min(first_ + pass * rows_, end_);
    count(first, std::min(rows_, end_ - first), mlp, model);
    correct += correct_;
  }
  const double all = world_.sum(correct, "correct held-out samples");
  return {static_cast<std::size_t>(std::llround(all)), held_out_.count};
}

template <typename T>
void Evaluation<T>::count(std::size_t first, std::size_t rows, Mlp<T>& mlp, tessera::FullyShard& model) {
  chosen_.indices.resize(rows);
  std::iota(chosen_.indices.begin(), chosen_.indices.end(), first);
  chosen_.weights.assign(rows, 1.0f);
  held_out_.source->read(chosen_, batch_);
  nn::CrossEntropyRows<T> answer;
  answer.logits = mlp.evaluate(model, {batch_.features.data(), rows, held_out_.source->columns()});
  answer.labels = batch_.labels.data();
  nn::count_correct<T>(model.stream(), answer, &correct_);
  model.synchronize();
}

template class Evaluation<float>;

}  // namespace examples
