// --masters: the type of what updates read and write. The trainers and `tessera plan` share it.
#pragma once

#include "tessera/plan/strategy.hpp"
#include "tessera/trainer/command_line.hpp"

#pragma GCC visibility push(default)

namespace tessera::trainer {

// `masters` must stay.
void add_masters_option(CommandLine& line, tessera::DType& masters);

// Returns the precision with these masters. Throws OptionError where it has no place for them.
tessera::Precision with_masters(tessera::Precision precision, tessera::DType masters);

}  // namespace tessera::trainer

#pragma GCC visibility pop
