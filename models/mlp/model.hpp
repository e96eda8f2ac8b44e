// The multilayer perceptron: input → hidden, `depth` times hidden → hidden, each followed by a GELU, then hidden →
// classes with the cross entropy. Each layer is a unit. T is the element type of parameters and activations.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "models/saved_memory.hpp"
#include "tessera/nn/activation_stack.hpp"
#include "tessera/nn/cross_entropy.hpp"
#include "tessera/nn/gelu.hpp"
#include "tessera/nn/linear.hpp"
#include "tessera/shard/fully_shard.hpp"

namespace models {

template <typename T>
class HiddenLayer : public tessera::Module {
 public:
  HiddenLayer(std::size_t in, std::size_t out) : linear_(in, out) {}

  void visit(tessera::ModuleVisitor& visitor) override { linear_.visit(visitor); }
  std::size_t out() const { return linear_.out(); }

  struct Saved {
    typename tessera::nn::Linear<T>::Saved linear;
    typename tessera::nn::Gelu<T>::Saved gelu;
  };
  Saved forward(tessera::Window& window, tessera::nn::ActivationStack& stack, tessera::nn::MatrixView<const T> x,
                tessera::nn::MatrixView<T> y);
  // From now on the unit's own memory has what backward() needs; `copies`: with a copy of x, whose place others take.
  void save(bool copies) { saves_ = true, copies_ = copies; }
  tessera::Bytes saved_bytes() const { return memory_.bytes(); }
  // dy is overwritten. dx without columns: not wanted.
  void backward(tessera::Window& window, tessera::nn::ActivationStack& stack, const Saved& saved,
                tessera::nn::MatrixView<T> dy, tessera::nn::MatrixView<T> dx);

 private:
  tessera::nn::Linear<T> linear_;
  tessera::nn::Gelu<T> gelu_;
  bool saves_ = false;
  bool copies_ = false;
  SavedMemory memory_;
};

// MlpAnswers are the targets of a batch, and where its mean loss goes.
struct MlpAnswers {
  tessera::nn::Targets targets;
  float* loss;
};

template <typename T>
class OutputLayer : public tessera::Module {
 public:
  OutputLayer(std::size_t in, std::size_t classes) : linear_(in, classes) {}

  void visit(tessera::ModuleVisitor& visitor) override { linear_.visit(visitor); }
  std::size_t out() const { return linear_.out(); }

  struct Saved {
    typename tessera::nn::Linear<T>::Saved linear;
    typename tessera::nn::CrossEntropy<T>::Saved loss;
  };
  // For evaluation: the logits alone.
  void forward(tessera::Window& window, tessera::nn::ActivationStack& stack, tessera::nn::MatrixView<const T> x,
               tessera::nn::MatrixView<T> logits);
  Saved forward(tessera::Window& window, tessera::nn::ActivationStack& stack, tessera::nn::MatrixView<const T> x,
                tessera::nn::MatrixView<T> logits, const MlpAnswers& answers);
  // The logits become their gradient.
  void backward(tessera::Window& window, tessera::nn::ActivationStack& stack, const Saved& saved,
                tessera::nn::MatrixView<T> logits, tessera::nn::MatrixView<T> dx);

 private:
  tessera::nn::Linear<T> linear_;
  tessera::nn::CrossEntropy<T> loss_;
};

struct MlpShape {
  std::size_t in;
  std::size_t hidden;
  std::size_t depth;
  std::size_t classes;
  // Units have memory for what hidden layers leave to their backward windows, which may go to the host's in between
  // (Offload::activations).
  bool layers_save = false;
};

template <typename T>
class Mlp {
 public:
  explicit Mlp(const MlpShape& shape);

  // For micro-batches of at most so many rows on devices of this kind.
  void add_to(tessera::FullyShard& model, std::size_t rows, tessera::DeviceKind device = tessera::DeviceKind::cpu);

  // Where activations stand from now on: planned_activation_bytes(), aligned to 64 bytes, as long as passes follow.
  void use(std::span<std::byte> memory, tessera::DeviceKind device = tessera::DeviceKind::cpu) {
    stack_ = tessera::nn::ActivationStack(memory, device);
  }

  // One micro-batch, forward and backward. Enqueues; x, targets and loss must stay until the stream is through.
  void train(tessera::FullyShard& model, tessera::nn::MatrixView<const float> x, const MlpAnswers& answers);
  // The logits in evaluation windows, valid until the next pass. x may have no rows.
  tessera::nn::MatrixView<T> evaluate(tessera::FullyShard& model, tessera::nn::MatrixView<const float> x);

  // Returns the bytes that passes over micro-batches of so many rows need, counted by the passes themselves.
  static tessera::Bytes planned_activation_bytes(const MlpShape& shape, std::size_t rows,
                                                 tessera::DeviceKind device = tessera::DeviceKind::cpu);

 private:
  // A hidden layer's output, and what its backward needs.
  struct Kept {
    tessera::nn::MatrixView<T> y;
    typename HiddenLayer<T>::Saved saved;
  };

  // The passes, for a FullyShard and for one that only counts.
  template <typename Model>
  void train_pass(Model& model, tessera::nn::MatrixView<const float> features, const MlpAnswers& answers);
  template <typename Model>
  void backward_pass(Model& model, tessera::nn::MatrixView<T> dy);
  template <typename Model>
  tessera::nn::MatrixView<T> evaluation_pass(Model& model, tessera::nn::MatrixView<const float> features);
  void count(std::size_t rows, tessera::DeviceKind device);
  template <typename Model>
  tessera::nn::MatrixView<const T> as_input(Model& model, tessera::nn::MatrixView<const float> features);

  MlpShape shape_;
  std::vector<std::unique_ptr<HiddenLayer<T>>> hidden_;
  OutputLayer<T> output_;
  std::vector<Kept> kept_;  // one per hidden layer
  tessera::nn::ActivationStack stack_;
};

}  // namespace models
