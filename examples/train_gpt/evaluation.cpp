// Sums in fp64: each pass counts by its tokens, then the ranks add up in their order.
#include "train_gpt/evaluation.hpp"

namespace examples {

template <typename T>
double Evaluation<T>::run(Gpt<T>& gpt, tessera::FullyShard& model) {
  double sum = 0.0;
  for (std::size_t pass = 0; pass < slice_.passes(); ++pass) {
    held_out_.read(slice_.samples(pass, 0), batch_);
    tessera::Stream& stream = model.stream();
    gpt.evaluate(model, {.ids = inputs_.put(stream, batch_.inputs), .sequence = held_out_.length()},
                 {.targets = targets_.put(stream, batch_.targets), .loss = loss_.at(stream)});
    loss_.fetch(stream);
    model.synchronize();
    sum += static_cast<double>(loss_.values().front()) * static_cast<double>(batch_.targets.size());
  }
  return world_.sum(sum, "held-out loss") / static_cast<double>(held_out_.tokens());
}

template class Evaluation<float>;
template class Evaluation<tessera::bf16>;
template class Evaluation<tessera::fp16>;

}  // namespace examples
