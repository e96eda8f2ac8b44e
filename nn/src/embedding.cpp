// Token and position embeddings.
#include "tessera/nn/embedding.hpp"

#include <fmt/format.h>

#include "src/cuda/cuda_layers.hpp"
#include "src/exported.hpp"
#include "src/operation.hpp"
#include "src/rows/active_rows.hpp"
#include "src/shared_rows.hpp"
#include "tessera/base/error.hpp"
#include "tessera/nn/context.hpp"
#include "tessera/nn/linear.hpp"

namespace tessera::nn {

namespace {

// Those of a slice are of all that the slices together have.
void check_ids(const std::int32_t* ids, std::size_t rows, std::size_t table, std::size_t all) {
  const std::size_t vocabulary = all == 0 ? table : all;
  for (std::size_t row = 0; row < rows; ++row) {
    if (ids[row] < 0 || static_cast<std::size_t>(ids[row]) >= vocabulary) {
      throw UsageError(
          fmt::format("embedding: the id of row {} is {}, but the table has {} rows", row, ids[row], vocabulary));
    }
  }
}

struct Sequences {
  std::size_t rows;
  std::size_t sequence;
  std::size_t first_position;
};

void check_sequences(const Sequences& of) {
  if (of.sequence == 0 || of.rows % of.sequence != 0) {
    throw UsageError(fmt::format("embedding: {} rows are no whole sequences of {}", of.rows, of.sequence));
  }
}

void check_positions(const Sequences& of, std::size_t context) {
  if (of.first_position + of.sequence > context) {
    throw UsageError(fmt::format("embedding: positions {} to {} are wanted, but the table of positions has {} rows",
                                 of.first_position, of.first_position + of.sequence - 1, context));
  }
}

// Beyond the table for ids of another slice.
template <typename Operation>
std::size_t place_in_table(const Operation& of, std::size_t row) {
  return static_cast<std::size_t>(of.ids[row]) - of.first_id;
}

template <Element T>
void forward_now(const EmbeddingForward<T>& of, const RowTable& run) {
  const std::size_t dim = of.y.columns;
  check_ids(of.ids, of.y.rows, of.table.rows, of.all_ids);
  const auto embed = [&](std::size_t row) {
    const std::size_t id = place_in_table(of, row);
    T* const y = of.y.data + row * dim;
    const T* position =
        of.positions.data == nullptr ? nullptr : of.positions.data + (of.first_position + row % of.sequence) * dim;
    if (id >= of.table.rows) {
      position == nullptr ? void(std::fill_n(y, dim, T{})) : void(std::copy_n(position, dim, y));
      return;
    }
    const T* token = of.table.data + id * dim;
    if (position == nullptr) return void(std::copy_n(token, dim, y));
    run.add({.format = format_of<T>, .a = token, .b = position, .y = y, .count = dim});
  };
  parallel::in_shares(shares_of_rows(of.y.rows, dim), [&](std::size_t begin, std::size_t end, std::size_t) {
    for (std::size_t row = begin; row < end; ++row) embed(row);
  });
}

// Sorts the rows by id, stably: row_of[starts[id]] … row_of[starts[id + 1] - 1] are those of an id, in their order.
struct RowsById {
  std::int32_t* starts;  // [vocabulary + 1]
  std::int32_t* row_of;  // [rows]
};

template <Element T>
RowsById sort_rows(const EmbeddingBackward<T>& of) {
  const std::size_t vocabulary = of.dtable.rows;
  const RowsById sorted{of.scratch, of.scratch + vocabulary + 1};
  std::fill_n(sorted.starts, vocabulary + 1, 0);
  for (std::size_t row = 0; row < of.dy.rows; ++row) {
    if (const std::size_t id = place_in_table(of, row); id < vocabulary) ++sorted.starts[id];
  }
  std::int32_t end = 0;
  for (std::size_t id = 0; id <= vocabulary; ++id) sorted.starts[id] = end += sorted.starts[id];
  for (std::size_t row = of.dy.rows; row-- > 0;) {
    const std::size_t id = place_in_table(of, row);
    if (id < vocabulary) sorted.row_of[--sorted.starts[id]] = static_cast<std::int32_t>(row);
  }
  return sorted;
}

// Each thread sums some of the columns of all ids, because few ids may have most of the rows.
template <Element T>
void table_gradient(const EmbeddingBackward<T>& of, const RowTable& run) {
  const std::size_t dim = of.dy.columns;
  const RowsById sorted = sort_rows(of);
  const auto shares = shares_of_columns(dim, of.dy.rows + of.dtable.rows);
  parallel::in_shares(shares, [&](std::size_t begin, std::size_t end, std::size_t) {
    for (std::size_t id = 0; id < of.dtable.rows; ++id) {
      run.sum_rows({.format = format_of<T>,
                    .from = of.dy.data + begin,
                    .stride = dim,
                    .index = sorted.row_of + sorted.starts[id],
                    .step = 1,
                    .count = static_cast<std::size_t>(sorted.starts[id + 1] - sorted.starts[id]),
                    .dim = end - begin,
                    .to = of.dtable.data + id * dim + begin,
                    .accumulate = of.accumulate});
    }
  });
}

template <Element T>
void position_gradient(const EmbeddingBackward<T>& of, const RowTable& run) {
  const std::size_t dim = of.dy.columns;
  const std::size_t sequences = of.dy.rows / of.sequence;
  const auto sum_of_row = [&](std::size_t row) {
    const bool used = of.dy.rows > 0 && row >= of.first_position && row < of.first_position + of.sequence;
    run.sum_rows({.format = format_of<T>,
                  .from = used ? of.dy.data + (row - of.first_position) * dim : nullptr,
                  .stride = dim,
                  .step = of.sequence,
                  .count = used ? sequences : 0,
                  .dim = dim,
                  .to = of.dpositions.data + row * dim,
                  .accumulate = of.accumulate});
  };
  const auto shares = shares_of_rows(of.dpositions.rows, dim * (sequences + 1));
  parallel::in_shares(shares, [&](std::size_t begin, std::size_t end, std::size_t) {
    for (std::size_t row = begin; row < end; ++row) sum_of_row(row);
  });
}

template <Element T>
cuda::EmbeddingForwardRows cuda_rows(const EmbeddingForward<T>& of) {
  return {.format = format_of<T>,
          .table = of.table.data,
          .positions = of.positions.data,
          .ids = of.ids,
          .y = of.y.data,
          .sequence = of.sequence,
          .first_position = of.first_position,
          .rows = of.y.rows,
          .vocabulary = of.table.rows,
          .dim = of.y.columns,
          .first_id = of.first_id,
          .all_ids = of.all_ids};
}

template <Element T>
cuda::EmbeddingBackwardRows cuda_rows(const EmbeddingBackward<T>& of) {
  return {.format = format_of<T>,
          .ids = of.ids,
          .dy = of.dy.data,
          .dtable = of.dtable.data,
          .dpositions = of.dpositions.data,
          .sequence = of.sequence,
          .first_position = of.first_position,
          .rows = of.dy.rows,
          .vocabulary = of.dtable.rows,
          .context = of.dpositions.rows,
          .dim = of.dy.columns,
          .accumulate = of.accumulate,
          .scratch = of.scratch,
          .first_id = of.first_id};
}

}  // namespace

template <Element T>
void embedding_forward(Stream& stream, const EmbeddingForward<T>& of) {
  const Sequences sequences{of.y.rows, of.sequence, of.first_position};
  require_shape("embedding: table", of.table, of.table.rows, of.y.columns);
  check_sequences(sequences);
  if (of.positions.data != nullptr) {
    require_shape("embedding: positions", of.positions, of.positions.rows, of.y.columns);
    check_positions(sequences, of.positions.rows);
  }
  if (on_cuda(stream)) {
    return issue<T>(stream, "embedding",
                    [rows = cuda_rows(of)](void* native) { cuda::embedding_forward(native, rows); });
  }
  stream.submit([of, &run = active_rows()] { forward_now(of, run); });
}

template <Element T>
void embedding_backward(Stream& stream, const EmbeddingBackward<T>& of) {
  const Sequences sequences{of.dy.rows, of.sequence, of.first_position};
  require_shape("embedding: dtable", of.dtable, of.dtable.rows, of.dy.columns);
  check_sequences(sequences);
  if (of.dpositions.data != nullptr) {
    require_shape("embedding: dpositions", of.dpositions, of.dpositions.rows, of.dy.columns);
    check_positions(sequences, of.dpositions.rows);
  }
  if (on_cuda(stream)) {
    return issue<T>(stream, "embedding",
                    [rows = cuda_rows(of)](void* native) { cuda::embedding_backward(native, rows); });
  }
  stream.submit([of, &run = active_rows()] {
    check_ids(of.ids, of.dy.rows, of.dtable.rows, of.all_ids);
    if (of.dtable.data != nullptr) table_gradient(of, run);
    if (of.dpositions.data != nullptr) position_gradient(of, run);
  });
}

std::size_t embedding_scratch(std::size_t rows, std::size_t vocabulary, DeviceKind device) {
  return device == DeviceKind::cpu ? rows + vocabulary + 1 : cuda::embedding_backward_scratch(rows, vocabulary);
}

template <Element T>
Embedding<T>::Embedding(const EmbeddingShape& shape, std::size_t drop_place)
    : shape_(shape),
      drop_place_(drop_place),
      ids_(shape.slices.part_of(shape.vocabulary, shape.slices.part(shape.vocabulary))),
      table_({shape.slices.part(shape.vocabulary), shape.dim}, Initial::normal(0.0f, 0.02f),
             {.slice = shape.slices.any() ? std::optional(plan::Slice{0, shape.vocabulary}) : std::nullopt}),
      positions_({shape.context, shape.dim}, Initial::normal(0.0f, 0.02f), alike_on(shape.slices)) {
  const std::size_t each = shape.slices.part(shape.vocabulary);
  if (!shape.slices.any() || each * (shape.slices.count - 1) < shape.vocabulary) return;
  throw UsageError(fmt::format("embedding: {} ids in {} slices of {}: the last would have none", shape.vocabulary,
                               shape.slices.count, each));
}

// Rows beyond the last id are zero.
template <Element T>
MatrixView<T> Embedding<T>::table_gradient(Window& window) const {
  T* const gradient = gradient_of<T>(window, table_);
  const std::size_t padding = table_.elements() - ids_.count * shape_.dim;
  if (gradient != nullptr && padding > 0) {
    kernels::fill_zero(window.stream(), gradient + ids_.count * shape_.dim, Bytes(padding * sizeof(T)));
  }
  return {gradient, ids_.count, shape_.dim};
}

template <Element T>
void Embedding<T>::visit(ModuleVisitor& visitor) {
  visitor("wte.weight", table_);
  visitor("wpe.weight", positions_);
}

template <Element T>
typename Embedding<T>::Saved Embedding<T>::forward(Window& window, ActivationStack&, std::span<const std::int32_t> ids,
                                                   MatrixView<T> y, const SequenceBatch& sequences) {
  if (window.computes() && ids.size() != y.rows) {
    throw UsageError(fmt::format("embedding: {} ids, but y has {} rows", ids.size(), y.rows));
  }
  const bool has_positions = shape_.slices.place == 0;  // one slice of the sum
  const T* const positions = parameter_of<T>(window, positions_);
  enqueue(window, embedding_forward<T>,
          {.table = table(window),
           .positions = {has_positions ? positions : nullptr, shape_.context, shape_.dim},
           .ids = ids.data(),
           .sequence = sequences.length,
           .first_position = sequences.first_position(),
           .y = y,
           .first_id = ids_.first,
           .all_ids = shape_.slices.any() ? shape_.vocabulary : 0});
  if (!shape_.slices.any()) drop_rows<T>(window, sequences, drop_place_, 0, y, y);
  return {.ids = ids.data(), .sequences = sequences};
}

template <Element T>
void Embedding<T>::backward(Window& window, ActivationStack& stack, const Saved& saved, MatrixView<T> dy) {
  const ScratchScope scratch(stack);
  const std::size_t room = embedding_scratch(dy.rows, ids_.count, device_of(window, stack));
  if (!shape_.slices.any()) drop_rows<T>(window, saved.sequences, drop_place_, 0, dy, dy);
  enqueue(window, embedding_backward<T>,
          {.ids = saved.ids,
           .sequence = saved.sequences.length,
           .first_position = saved.sequences.first_position(),
           .dy = dy,
           .dtable = table_gradient(window),
           .dpositions = {gradient_of<T>(window, positions_), shape_.context, shape_.dim},
           .scratch = stack.push<std::int32_t>(room).data(),
           .first_id = ids_.first,
           .all_ids = shape_.slices.any() ? shape_.vocabulary : 0});
}

// Padded where products are faster on aligned rows.
template <Element T>
typename Embedding<T>::Logits Embedding<T>::push_logits(Window& window, ActivationStack& stack,
                                                        std::size_t rows) const {
  constexpr std::size_t unit = 128;
  if (device_of(window, stack) == DeviceKind::cpu) return {stack.push<T>(rows, ids_.count), 0};
  const std::size_t stride = (ids_.count + unit - 1) / unit * unit;
  return {{stack.push<T>(rows * stride).data(), rows, ids_.count}, stride};
}

template <Element T>
void Embedding<T>::form_logits(Window& window, ActivationStack& stack, MatrixView<const T> x, const Logits& to) {
  const ScratchScope scope(stack);
  const std::size_t room = linear_scratch<T>(x.rows, shape_.dim, ids_.count, device_of(window, stack));
  enqueue(window, linear_forward<T>,
          {.x = x,
           .weight = table(window),
           .y = to.matrix,
           .y_stride = to.stride,
           .scratch = stack.push<float>(room).data()});
}

template <Element T>
void Embedding<T>::backward_of(Window& window, ActivationStack& stack, const SavedLogits& saved, const Logits& gradient,
                               const Wanted& wanted) {
  const ScratchScope scope(stack);
  const std::size_t room = linear_scratch<T>(saved.x.rows, shape_.dim, ids_.count, device_of(window, stack));
  enqueue(window, linear_backward<T>,
          {.x = saved.x,
           .weight = table(window),
           .dy = gradient.matrix,
           .dx = wanted.dx,
           .dy_stride = gradient.stride,
           .dweight = wanted.table ? table_gradient(window).data : nullptr,
           .scratch = stack.push<float>(room).data()});
}

template <Element T>
typename Embedding<T>::SavedLogits Embedding<T>::forward(Window& window, ActivationStack& stack, MatrixView<const T> x,
                                                         MatrixView<T> logits) {
  form_logits(window, stack, x, {logits, 0});
  return {x};
}

template <Element T>
void Embedding<T>::backward(Window& window, ActivationStack& stack, const SavedLogits& saved,
                            MatrixView<const T> dlogits, MatrixView<T> dx) {
  backward_of(window, stack, saved, {{const_cast<T*>(dlogits.data), dlogits.rows, dlogits.columns}, 0}, {dx});
}

template <Element T>
typename Embedding<T>::SavedLoss Embedding<T>::forward(Window& window, ActivationStack& stack, MatrixView<const T> x,
                                                       const Prediction<T>& prediction) {
  const Logits logits =
      prediction.logits.columns == 0 ? push_logits(window, stack, x.rows) : Logits{prediction.logits, 0};
  form_logits(window, stack, x, logits);
  SavedLoss saved{.linear = {x}, .prediction = prediction, .stride = logits.stride};
  saved.prediction.logits = logits.matrix;
  if (shape_.slices.any()) {
    saved.of_slice = loss_.of_slice(window, stack, saved.loss, logits.matrix, prediction.targets, logits.stride,
                                    {.first = ids_.first, .all = shape_.vocabulary});
    return saved;
  }
  if (prediction.at_once) return saved;
  saved.loss = loss_.forward(window, stack, logits.matrix, prediction.targets, prediction.loss, logits.stride);
  return saved;
}

// In the place of the logits.
template <Element T>
typename Embedding<T>::Logits Embedding<T>::gradient_of_logits(Window& window, ActivationStack& stack,
                                                               const SavedLoss& saved) {
  const Prediction<T>& of = saved.prediction;
  if (of.at_once && !shape_.slices.any()) {
    loss_.at_once(window, stack, of.logits, of.targets, of.loss, saved.stride);
  } else {
    loss_.backward(window, stack, saved.loss, of.logits);
  }
  return {of.logits, saved.stride};
}

template <Element T>
void Embedding<T>::backward(Window& window, ActivationStack& stack, const SavedLoss& saved, MatrixView<T> dx) {
  backward_of(window, stack, saved.linear, gradient_of_logits(window, stack, saved), {dx});
}

template <Element T>
void Embedding<T>::backward_input(Window& window, ActivationStack& stack, const SavedLoss& saved, MatrixView<T> dx) {
  backward_of(window, stack, saved.linear, gradient_of_logits(window, stack, saved), {dx, false});
}

template <Element T>
void Embedding<T>::backward_parameters(Window& window, ActivationStack& stack, const SavedLoss& saved) {
  backward_of(window, stack, saved.linear, {saved.prediction.logits, saved.stride}, {});
}

#define TESSERA_EMBEDDING(T)                                                               \
  template TESSERA_EXPORTED void embedding_forward(Stream&, const EmbeddingForward<T>&);   \
  template TESSERA_EXPORTED void embedding_backward(Stream&, const EmbeddingBackward<T>&); \
  template class Embedding<T>;
TESSERA_FOR_EACH_ELEMENT(TESSERA_EMBEDDING)

}  // namespace tessera::nn
