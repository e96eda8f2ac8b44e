// The error family. Every text says what happened, where (rank, unit, parameter, shape, path), and what to do.
// Recoverable errors derive from Error; a broken invariant of ours is an InternalError and not an Error.
#pragma once

#include <stdexcept>
#include <string>

#pragma GCC visibility push(default)

namespace tessera {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The caller broke a contract: wrong option, wrong order of windows, wrong shape.
class UsageError : public Error {
 public:
  using Error::Error;
};

// A file or its contents are not what they must be. The text begins with the path.
class DataError : public Error {
 public:
  using Error::Error;
};

// The arena cannot be had, or the plan does not fit the stated limit.
class MemoryError : public Error {
 public:
  using Error::Error;
};

// A rank never came, or ranks disagree about a collective. The text names both sides.
class CommunicationError : public Error {
 public:
  using Error::Error;
};

// Another rank failed first; the text carries that rank and its cause.
class AbortedError : public Error {
 public:
  using Error::Error;
};

// This build or this machine lacks what was asked for (CUDA, MPI, a device). The text says what is missing.
class UnavailableError : public Error {
 public:
  using Error::Error;
};

// A bug of Tessera's, never of its user's.
class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

}  // namespace tessera

#pragma GCC visibility pop
