// How a sum over ranks c0, c1, … treats what already stands in its result. Kernels for each instruction set include
// this, so nothing else is here.
#pragma once

#pragma GCC visibility push(default)

namespace tessera::kernels {

enum class Accumulate {
  no,    // replaces it:  c0 + c1 + …
  sum,   // adds the sum:  result + ((c0 + c1) + …)
  terms  // goes on with it, as if one rank had brought one term after the other:  ((result + c0) + c1) + …
};

}  // namespace tessera::kernels

#pragma GCC visibility pop
