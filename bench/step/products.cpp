// Layers on memory of their own, through the functions that the layers of nn enqueue.
#include "step/products.hpp"

#include <cstring>
#include <functional>

#include "measure/timing.hpp"
#include "tessera/device/arena.hpp"
#include "tessera/device/stream.hpp"
#include "tessera/nn/linear.hpp"
#include "tessera/nn/with_element.hpp"

namespace bench {

namespace {

using namespace tessera;
using nn::MatrixView;

constexpr std::size_t cache_line = 64;

// Matrices one after the other in an arena; counts without one.
class Matrices {
 public:
  explicit Matrices(std::byte* memory) : memory_(memory) {}

  template <typename T>
  MatrixView<T> take(std::size_t rows, std::size_t columns) {
    auto* const data = reinterpret_cast<T*>(memory_ + used_);
    used_ += (rows * columns * sizeof(T) + cache_line - 1) / cache_line * cache_line;
    return {data, rows, columns};
  }
  std::size_t used() const { return used_; }

 private:
  std::byte* memory_;
  std::size_t used_ = 0;
};

template <typename T>
struct Layer {
  nn::LinearForward<T> forward;
  nn::LinearBackward<T> backward;
};

template <typename T>
Layer<T> layer_of(const LinearShape& shape, Matrices& memory) {
  const auto x = memory.take<T>(shape.rows, shape.in);
  const auto weight = memory.take<T>(shape.out, shape.in);
  const auto y = memory.take<T>(shape.rows, shape.out);
  const auto dx = shape.wants_dx ? memory.take<T>(shape.rows, shape.in) : MatrixView<T>{};
  T* const dweight = memory.take<T>(shape.out, shape.in).data;
  float* const scratch = memory.take<float>(1, nn::linear_scratch<T>(shape.rows, shape.in, shape.out)).data;
  return {.forward = {.x = x, .weight = weight, .y = y, .scratch = scratch},
          .backward = {.x = x, .weight = weight, .dy = y, .dx = dx, .dweight = dweight, .scratch = scratch}};
}

template <typename T>
std::vector<Layer<T>> layers_of(const Products& products, Matrices& memory) {
  std::vector<Layer<T>> layers;
  for (const LinearShape& shape : products.linear) layers.push_back(layer_of<T>(shape, memory));
  return layers;
}

template <typename T>
struct AttentionLayer {
  nn::AttentionForward<T> forward;
  nn::AttentionBackward<T> backward;
};

template <typename T>
AttentionLayer<T> attention_of(const Products& products, Matrices& memory) {
  using Real = nn::Arithmetic<T>;
  const nn::AttentionShape& shape = products.attention;
  const auto qkv = memory.take<T>(shape.rows(), 3 * shape.dim());
  const auto dqkv = memory.take<T>(shape.rows(), 3 * shape.dim());
  const auto out = memory.take<T>(shape.rows(), shape.dim());
  Real* const statistics = memory.take<Real>(1, shape.statistics()).data;
  Real* const scratch = memory.take<Real>(1, nn::attention_backward_scratch<T>(shape)).data;
  Real* const forward_scratch = memory.take<Real>(1, nn::attention_forward_scratch<T>(shape)).data;
  return {.forward = {.shape = shape, .qkv = qkv, .out = out, .statistics = statistics, .scratch = forward_scratch},
          .backward = {
              .shape = shape, .qkv = qkv, .statistics = statistics, .dout = out, .dqkv = dqkv, .scratch = scratch}};
}

template <typename T>
ProductTimes measure_in(const Products& products, std::size_t rounds) {
  Matrices counting(nullptr);
  layers_of<T>(products, counting);
  attention_of<T>(products, counting);
  Arena arena(Device::cpu(), Bytes(counting.used()));
  // 0x3c3c is 0.011 as bf16, and 0x3c3c3c3c as fp32: numbers like any other.
  std::memset(arena.data(), 0x3c, counting.used());
  Matrices memory(arena.data());
  const auto layers = layers_of<T>(products, memory);
  const auto attention = attention_of<T>(products, memory);
  Stream stream(Device::cpu(), {.name = "bench", .mode = StreamMode::immediate});
  const std::vector<std::function<void()>> bodies{[&] {
                                                    for (const auto& layer : layers)
                                                      nn::linear_forward(stream, layer.forward);
                                                    for (std::size_t i = layers.size(); i-- > 0;)
                                                      nn::linear_backward(stream, layers[i].backward);
                                                  },
                                                  [&] {
                                                    for (std::size_t i = 0; i < products.attentions; ++i)
                                                      nn::attention_forward(stream, attention.forward);
                                                    for (std::size_t i = 0; i < products.attentions; ++i)
                                                      nn::attention_backward(stream, attention.backward);
                                                  }};
  const std::vector<double> seconds = alternate(bodies, rounds);
  stream.rethrow_failure();
  return {.linear = seconds[0], .attention = seconds[1]};
}

}  // namespace

double Products::linear_operations() const {
  double operations = 0.0;
  for (const LinearShape& shape : linear) {
    operations += 2.0 * (shape.wants_dx ? 3.0 : 2.0) * static_cast<double>(shape.rows * shape.in * shape.out);
  }
  return operations;
}

ProductTimes measure(const Products& products, const Precision& precision, std::size_t rounds) {
  return tessera::nn::with_element(precision,
                                   [&](auto element) { return measure_in<decltype(element)>(products, rounds); });
}

double large_product_rate(std::size_t n, std::size_t rounds) {
  const Products products{.linear = {{n, n, n}}};
  return products.linear_operations() / measure(products, fp32_precision, rounds).linear;
}

}  // namespace bench
