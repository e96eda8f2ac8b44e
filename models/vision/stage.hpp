// A vision model is made of stages, which turn images into images, and a head, which turns them into a logit for each
// class. Each is a unit. T is the element type of parameters and activations.
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "models/saved_memory.hpp"
#include "models/unit_of_places.hpp"
#include "tessera/nn/activation_stack.hpp"
#include "tessera/nn/cross_entropy.hpp"
#include "tessera/nn/layer.hpp"
#include "tessera/shard/module.hpp"
#include "tessera/vision/image_view.hpp"

namespace models {

namespace nn = tessera::nn;

// Keeps what its backward needs of the forward before it, as views of the stack.
template <typename T>
class Stage : public UnitOfPlaces {
 public:
  virtual tessera::vision::ImageView<T> push_result(nn::ActivationStack& stack,
                                                    tessera::vision::ConstImageView<T> x) const = 0;
  virtual void forward(tessera::Window& window, nn::ActivationStack& stack, tessera::vision::ImageView<const T> x,
                       tessera::vision::ImageView<T> y) = 0;
  // The gradient of y is overwritten. dx without channels: not wanted.
  virtual void backward(tessera::Window& window, nn::ActivationStack& stack, tessera::vision::ImageView<T> dy,
                        tessera::vision::ImageView<T> dx) = 0;
  // Whether backward() reads what forward() made.
  virtual bool reads_result() const { return true; }
};

// A stage whose forward window leaves what its backward one needs in the unit's own memory: with copies of what it
// reads and makes, whose places other stages take.
template <typename T>
class SavingStage final : public Stage<T> {
 public:
  // copies: of what it reads, too.
  SavingStage(std::unique_ptr<Stage<T>> stage, bool copies) : stage_(std::move(stage)), copies_(copies) {}

  tessera::Bytes saved_bytes() const { return memory_.bytes(); }

  void visit(tessera::ModuleVisitor& visitor) override { stage_->visit(visitor); }
  tessera::vision::ImageView<T> push_result(nn::ActivationStack& stack,
                                            tessera::vision::ConstImageView<T> x) const override {
    return stage_->push_result(stack, x);
  }
  void forward(tessera::Window& window, nn::ActivationStack& stack, tessera::vision::ImageView<const T> x,
               tessera::vision::ImageView<T> y) override {
    if (window.kind() == tessera::plan::WindowKind::evaluate) return stage_->forward(window, stack, x, y);
    memory_.forward(window, stack, [&](nn::ActivationStack& own) {
      tessera::vision::ImageView<const T> input = x;
      if (copies_) {
        const std::span<T> copy = own.push<T>(x.elements());
        copy_values(window, copy.data(), x.data, x.elements());
        input.data = copy.data();
      }
      if (!stage_->reads_result()) return stage_->forward(window, own, input, y);
      tessera::vision::ImageView<T> result = y;
      result.data = own.push<T>(y.elements()).data();
      stage_->forward(window, own, input, result);
      copy_values(window, y.data, static_cast<const T*>(result.data), y.elements());
    });
  }
  void backward(tessera::Window& window, nn::ActivationStack& stack, tessera::vision::ImageView<T> dy,
                tessera::vision::ImageView<T> dx) override {
    stage_->backward(window, stack, dy, dx);
  }

 private:
  std::unique_ptr<Stage<T>> stage_;
  bool copies_;
  SavedMemory memory_;
};

// ImageAnswers are the targets of a batch, and where its loss goes.
struct ImageAnswers {
  nn::Targets targets;
  float* loss;
};

template <typename T>
class Head : public UnitOfPlaces {
 public:
  explicit Head(float label_smoothing) : loss_(label_smoothing) {}

  // Evaluates: logits [images, classes] alone.
  void forward(tessera::Window& window, nn::ActivationStack& stack, tessera::vision::ImageView<const T> x,
               nn::MatrixView<T> logits) {
    compute(window, stack, x, logits);
  }
  // Trains: the loss, too.
  void forward(tessera::Window& window, nn::ActivationStack& stack, tessera::vision::ImageView<const T> x,
               nn::MatrixView<T> logits, const ImageAnswers& answers) {
    compute(window, stack, x, logits);
    this->here(saved_loss_) = loss_.forward(window, stack, logits, answers.targets, answers.loss);
  }
  // The logits become their gradient, and x's is written.
  void backward(tessera::Window& window, nn::ActivationStack& stack, nn::MatrixView<T> logits,
                tessera::vision::ImageView<T> dx) {
    differentiate_loss(window, stack, logits);
    differentiate(window, stack, logits, dx);
  }

 protected:
  void differentiate_loss(tessera::Window& window, nn::ActivationStack& stack, nn::MatrixView<T> logits) {
    loss_.backward(window, stack, this->here(saved_loss_), logits);
  }

 private:
  // Keeps what differentiate() needs.
  virtual void compute(tessera::Window& window, nn::ActivationStack& stack, tessera::vision::ImageView<const T> x,
                       nn::MatrixView<T> logits) = 0;
  virtual void differentiate(tessera::Window& window, nn::ActivationStack& stack, nn::MatrixView<const T> dlogits,
                             tessera::vision::ImageView<T> dx) = 0;

  nn::CrossEntropy<T> loss_;
  std::vector<typename nn::CrossEntropy<T>::Saved> saved_loss_;  // by place
};

}  // namespace models
