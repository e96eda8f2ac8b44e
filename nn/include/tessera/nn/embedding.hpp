// Token and position embeddings: y[row] = table[ids[row]] + positions[first_position + row mod sequence].
//
// The functions enqueue on the stream, capture everything by value, do not synchronise and allocate nothing. Gradients
// are sums over rows in the order of the rows, in fp32 (fp64 for double), each element stored once. 0 rows are fine.
// They throw UsageError when shapes do not fit. An id that is no row of the table is a UsageError in the stream that
// names the row and the id; nothing is written then. On a CUDA device, where kernels cannot throw, the row of y becomes
// NaN, and with it the loss; backward leaves such rows out.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "tessera/device/stream.hpp"
#include "tessera/nn/activation_stack.hpp"
#include "tessera/nn/cross_entropy.hpp"
#include "tessera/nn/element.hpp"
#include "tessera/nn/layer.hpp"
#include "tessera/nn/sequence_batch.hpp"
#include "tessera/nn/slices.hpp"
#include "tessera/nn/view.hpp"
#include "tessera/shard/module.hpp"
#include "tessera/shard/parameter.hpp"

#pragma GCC visibility push(default)

namespace tessera::nn {

template <Element T>
struct EmbeddingForward {
  MatrixView<const T> table;          // [vocabulary, dim]
  MatrixView<const T> positions;      // [context, dim]; without data: none are added
  const std::int32_t* ids = nullptr;  // [rows], 0 … vocabulary - 1
  std::size_t sequence = 1;           // rows of each sequence; divides rows
  std::size_t first_position = 0;     // of every sequence; first_position + sequence <= context
  MatrixView<T> y;                    // [rows, dim]
  // The table is some rows of a larger one, from this id on: rows of that one's other ids have nothing of it.
  std::size_t first_id = 0;
  std::size_t all_ids = 0;  // of the larger one; 0: there is none
};
template <Element T>
void embedding_forward(Stream& stream, const EmbeddingForward<T>& operation);

template <Element T>
struct EmbeddingBackward {
  const std::int32_t* ids = nullptr;  // [rows]
  std::size_t sequence = 1;           // rows of each sequence; divides rows
  std::size_t first_position = 0;
  MatrixView<const T> dy;    // [rows, dim]
  MatrixView<T> dtable;      // [vocabulary, dim]; without data: not wanted. Rows of ids that do not occur become 0
  MatrixView<T> dpositions;  // [context, dim]; without data: not wanted. Other rows become 0
  bool accumulate = false;   // adds to dtable and dpositions instead of replacing them
  std::int32_t* scratch = nullptr;  // embedding_scratch(rows, vocabulary, device) numbers
  std::size_t first_id = 0;         // as forward
  std::size_t all_ids = 0;
};
template <Element T>
void embedding_backward(Stream& stream, const EmbeddingBackward<T>& operation);

// CUDA devices need more than the CPU, so that without a device it is enough for any.
std::size_t embedding_scratch(std::size_t rows, std::size_t vocabulary, DeviceKind device = DeviceKind::cuda);

// The tables as a layer, with GPT-2's dropout on the sum. Where a model ties its last layer to the token table (Press &
// Wolf 2017), a second window of the same unit makes the logits with it, and the runtime adds up both gradients.
struct EmbeddingShape {
  std::size_t vocabulary;
  std::size_t context;  // positions: no sequence is longer
  std::size_t dim;
  // Each rank has some rows of the token table, and at least one. The sum over ranks of what forward() leaves is then
  // the embedding (SpreadRows), and drops nothing; so is that of the gradients of x, which has all rows. Logits are of
  // this rank's ids, and their loss is what SlicedLoss makes of them in a window of its own.
  Slices slices = {};
};

// A Prediction is what a language model says to a batch, and what is right.
template <Element T>
struct Prediction {
  // [rows, vocabulary]; backward leaves their gradient here. Without columns: a place of the layer's own, from the
  // stack, whose rows begin on 128 elements on CUDA devices, for the products' sake.
  MatrixView<T> logits = {};
  Targets targets;                // the next tokens
  Arithmetic<T>* loss = nullptr;  // becomes the mean cross entropy
  // In training, where nobody needs the loss before backward(): that forms it, too, with the logits' gradient, and
  // reads the logits once (CrossEntropy::at_once).
  bool at_once = false;
};

template <Element T>
class Embedding final : public Module {
 public:
  // Both tables start as normal(0, 0.02). drop_place: of SequenceBatch::dropout_at, another one than the blocks'.
  explicit Embedding(const EmbeddingShape& shape, std::size_t drop_place = 0);

  void visit(ModuleVisitor& visitor) override;  // "wte.weight" [vocabulary, dim], "wpe.weight" [context, dim]
  const EmbeddingShape& shape() const { return shape_; }

  struct Saved {
    const std::int32_t* ids;
    SequenceBatch sequences;
  };
  // y [ids, dim] = drop(table[id] + positions[row mod length]). `ids` must stay until backward() has run. Throws
  // UsageError when there are not as many ids as rows.
  Saved forward(Window& window, ActivationStack& stack, std::span<const std::int32_t> ids, MatrixView<T> y,
                const SequenceBatch& sequences);
  void backward(Window& window, ActivationStack& stack, const Saved& saved, MatrixView<T> dy);  // overwrites dy

  // The last layer is the same table: logits [rows, vocabulary] = x tableᵀ, with x [rows, dim].
  struct SavedLogits {
    MatrixView<const T> x;
  };
  SavedLogits forward(Window& window, ActivationStack& stack, MatrixView<const T> x, MatrixView<T> logits);
  void backward(Window& window, ActivationStack& stack, const SavedLogits& saved, MatrixView<const T> dlogits,
                MatrixView<T> dx);

  // The last layer with the loss (cross_entropy.hpp) in the same window.
  struct SavedLoss {
    SavedLogits linear;
    Prediction<T> prediction;  // whose logits are those that were formed
    std::size_t stride;        // of their rows; 0: without gaps
    typename CrossEntropy<T>::Saved loss = {};
    std::span<const Arithmetic<T>> of_slice = {};  // cross_entropy_of_slice()
  };
  SavedLoss forward(Window& window, ActivationStack& stack, MatrixView<const T> x, const Prediction<T>& prediction);
  void backward(Window& window, ActivationStack& stack, const SavedLoss& saved, MatrixView<T> dx);
  void backward_input(Window& window, ActivationStack& stack, const SavedLoss& saved, MatrixView<T> dx);
  void backward_parameters(Window& window, ActivationStack& stack, const SavedLoss& saved);

 private:
  MatrixView<const T> table(Window& window) const { return {parameter_of<T>(window, table_), ids_.count, shape_.dim}; }
  MatrixView<T> table_gradient(Window& window) const;

  // Logits, and how far their rows are apart; 0: without gaps.
  struct Logits {
    MatrixView<T> matrix;
    std::size_t stride;
  };
  Logits push_logits(Window& window, ActivationStack& stack, std::size_t rows) const;
  void form_logits(Window& window, ActivationStack& stack, MatrixView<const T> x, const Logits& to);
  struct Wanted {
    MatrixView<T> dx;
    bool table = true;
  };
  void backward_of(Window& window, ActivationStack& stack, const SavedLogits& saved, const Logits& gradient,
                   const Wanted& wanted);
  Logits gradient_of_logits(Window& window, ActivationStack& stack, const SavedLoss& saved);

  EmbeddingShape shape_;
  std::size_t drop_place_;
  Slices::Part ids_;  // of this rank
  Parameter table_;
  Parameter positions_;
  CrossEntropy<T> loss_;
};

// The loss of logits that are cut by ids, in a window of its own between the head's forward and backward ones, which
// all ranks along Axis::tensor open: the same on each.
template <Element T>
class SlicedLoss final : public Module {
 public:
  SlicedLoss(const Slices& slices, std::size_t vocabulary)
      : slices_(slices),
        vocabulary_(vocabulary),
        brought_(std::max(3 * slices.rows, slices.part(vocabulary)),
                 sliced_collective<float>(CollectiveKind::all_gather, CollectiveWindows::forward)) {}

  void visit(ModuleVisitor& visitor) override { visitor("brought", brought_); }

  // Forms Prediction::loss; the head's backward() follows.
  void forward(Window& window, const typename Embedding<T>::SavedLoss& head) {
    const Collected<float> all = collected(window, head.of_slice.data(), head.of_slice.size());
    enqueue(window, cross_entropy_of_slices<T>, head.loss.rows,
            {.first = all.first, .stride = all.stride, .count = slices_.count}, head.prediction.loss);
  }
  // A row's logits of all ids, from those of this rank's.
  void forward(Window& window, MatrixView<const float> mine, MatrixView<float> logits) {
    const Collected<float> all = collected(window, mine.data, mine.elements());
    if (!window.computes() || logits.rows == 0) return;
    const std::size_t each = slices_.part(vocabulary_);
    for (std::size_t place = 0; place < slices_.count; ++place) {
      const std::size_t first = std::min(place * each, vocabulary_), count = std::min(each, vocabulary_ - first);
      kernels::copy(window.stream(), logits.data + first, all.first + place * all.stride, Bytes(count * sizeof(float)));
    }
  }

 private:
  Collected<float> collected(Window& window, const float* values, std::size_t count) {
    const auto to = window.contribution<float>(brought_);
    if (window.computes()) kernels::copy(window.stream(), to.data(), values, Bytes(count * sizeof(float)));
    return window.collect<float>(brought_);
  }

  Slices slices_;
  std::size_t vocabulary_;
  Collective brought_;
};

}  // namespace tessera::nn

#pragma GCC visibility pop
