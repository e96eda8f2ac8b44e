// Each byte is a pass over those before it, as many as the model has positions for.
#include "train_gpt/writer.hpp"

#include <algorithm>
#include <span>

#include "train_gpt/text.hpp"

namespace examples {

template <typename T>
std::string Writer<T>::write(Gpt<T>& gpt, tessera::FullyShard& model, std::size_t bytes, std::size_t draw) {
  text_ = tokens_of(job_.options.prompt.value_or("\n"));
  for (std::size_t i = 0; i < bytes; ++i) {
    write_byte(gpt, model, uniform_number(job_.options.run.seed, draw, static_cast<std::uint32_t>(i)));
  }
  return writes_ ? printable(text_) : std::string();
}

template <typename T>
void Writer<T>::write_byte(Gpt<T>& gpt, tessera::FullyShard& model, double uniform) {
  const std::span<const std::int32_t> text(text_);
  const std::span<const std::int32_t> seen = text.last(std::min(text.size(), job_.shape.seq));
  tessera::Stream& stream = model.stream();
  const std::span<const std::int32_t> read = writes_ ? seen : std::span<const std::int32_t>();
  const std::span<const float> found = gpt.next(model, seen_.put(stream, read));
  logits_.resize(found.size());
  tessera::kernels::copy(stream, logits_.data(), found.data(), tessera::Bytes(found.size_bytes()));
  model.synchronize();
  // The vocabulary may be padded beyond the data's ids.
  if (writes_) {
    const std::span<const float> logits(logits_);
    text_.push_back(choose_token(logits.first(job_.data.file().vocabulary()), job_.options.temperature, uniform));
  }
}

template class Writer<float>;
template class Writer<tessera::bf16>;
template class Writer<tessera::fp16>;

}  // namespace examples
