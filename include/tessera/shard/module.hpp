// The base of a user's layers: a module names its parameters, buffers, collectives and parts. It computes in functions
// of its own, forward(Window&, …) and backward(Window&, …), with whatever arguments and results it likes.
#pragma once

#include <string_view>

#pragma GCC visibility push(default)

namespace tessera {

class Buffer;
class Collective;
class Parameter;
class Module;

// Handed to Module::visit. Names are joined with dots along the way: "up" inside "mlp" inside "blocks.3".
class ModuleVisitor {
 public:
  virtual ~ModuleVisitor() = default;
  virtual void operator()(std::string_view name, Parameter& parameter) = 0;
  virtual void operator()(std::string_view name, Buffer& buffer) = 0;
  virtual void operator()(std::string_view name, Collective& collective) = 0;
  virtual void operator()(std::string_view name, Module& part) = 0;
};

class Module {
 public:
  virtual ~Module() = default;

  // Names every parameter, buffer, collective and part, always in the same order and the same on every rank. Called by
  // FullyShard::add; from then on the module must stay at its address.
  virtual void visit(ModuleVisitor& visitor) = 0;
};

}  // namespace tessera

#pragma GCC visibility pop
