// Nodes of autograd's graph: kept by std::shared_ptr in libtorch 1.13, by c10::intrusive_ptr in later ones.
#pragma once

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <type_traits>
#include <utility>

// Libtorch 1.13 does not say which node runs: then it is none. Overload resolution prefers a later libtorch's function,
// which is no template; it sees both, because both namespaces stand in the global one. Where it does not, later ones'
// pointers are of another type, and nothing compiles.
namespace tessera_torch_unsaid {
template <typename = void>
std::shared_ptr<::torch::autograd::Node> get_current_node() {
  return nullptr;
}
}  // namespace tessera_torch_unsaid

namespace tessera::torch {

using Node = ::torch::autograd::Node;
using NodePointer = decltype(::torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>()));
inline constexpr bool nodes_are_shared = std::is_same_v<NodePointer, std::shared_ptr<Node>>;
using WeakNodePointer = std::conditional_t<nodes_are_shared, std::weak_ptr<Node>, c10::weak_intrusive_ptr<Node>>;

inline NodePointer node_that_runs() {
  using namespace ::tessera_torch_unsaid;
  using namespace ::torch::autograd;
  return get_current_node();
}

template <typename T, typename... Args>
auto make_node(Args&&... args) {
  if constexpr (nodes_are_shared) {
    return std::make_shared<T>(std::forward<Args>(args)...);
  } else {
    return c10::make_intrusive<T>(std::forward<Args>(args)...);
  }
}

}  // namespace tessera::torch
