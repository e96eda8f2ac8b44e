// Constructors' operators are recorded here for tensors that are shapes so far, and computed later.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tessera::torch {

class Recording : public std::enable_shared_from_this<Recording> {
 public:
  explicit Recording(std::uint64_t seed) : seed_(seed) {}

  // Calls the operator, whose arguments end the stack, for shapes alone, and writes down what it would do to values.
  // Throws UsageError where it needs them.
  void run(const c10::OperatorHandle& called, c10::Stack& stack);

  // Operators that are computed for this tensor, and for none that was named before, take random numbers by this name.
  void name(const at::Tensor& tensor, const std::string& name);
  // Throws UsageError where the tensor was changed when nothing was written down any more.
  void require_complete(const at::Tensor& tensor, const std::string& name) const;

  // In memory of the host. What the tensor shares with others is computed again for each.
  at::Tensor values(const at::Tensor& tensor) const;

 private:
  // Storages have numbers, which no later one takes over. In an operation tensors are stand-ins, which have a number
  // and the shape that they had then.
  struct Operation {
    c10::OperatorHandle called;
    std::size_t place;  // among the owner's
    std::vector<c10::IValue> arguments = {};
    std::vector<std::pair<at::Tensor, std::int64_t>> given = {};  // tensors of the caller's own, with their versions
    std::vector<std::pair<std::size_t, at::Tensor>> made = {};    // by place among the results
    std::vector<std::size_t> reads = {};
    std::vector<std::size_t> writes = {};
    std::string owner = {};  // whose random numbers it draws
  };
  using Storages = std::map<std::size_t, at::Storage>;

  at::Tensor stand_in_for(const at::Tensor& argument, Operation& operation) const;
  void call(const c10::OperatorHandle& called, c10::Stack& stack) const;
  void note_set_data(const c10::Stack& stack);
  void take_results(const c10::Stack& stack, Operation& operation);
  std::vector<std::size_t> needed_for(std::size_t storage) const;
  void repeat(const Operation& operation, Storages& storages) const;

  std::uint64_t seed_;
  std::vector<Operation> operations_;
  std::unordered_map<std::size_t, std::vector<std::size_t>> writers_;  // operations in order, by storage
  std::unordered_map<std::size_t, std::int64_t> changes_;              // by storage, as torch counts versions
  std::size_t storages_ = 0;
};

// Returns the recording of the tensor's values; null for one that is not deferred.
std::shared_ptr<Recording> recording_of(const at::Tensor& tensor);

}  // namespace tessera::torch
