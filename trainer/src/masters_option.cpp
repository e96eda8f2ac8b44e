// One choice, which belongs to the precision of parameters.
#include "tessera/trainer/masters_option.hpp"

namespace tessera::trainer {

void add_masters_option(CommandLine& line, tessera::DType& masters) {
  line.choice<tessera::DType>(
      "--masters", masters, {{"fp32", tessera::DType::fp32}, {"bf16", tessera::DType::bf16}},
      "Type of the weights that updates read and write [fp32]; bf16, with --precision bf16: 2 bytes a parameter in "
      "place "
      "of 4 or 6. Updates compute in fp32 and round up or down by chance, so that small ones are not lost, with the "
      "same bits on any ranks");
}

tessera::Precision with_masters(tessera::Precision precision, tessera::DType masters) {
  if (masters == tessera::DType::bf16 && precision.parameter != tessera::DType::bf16) {
    throw OptionError(
        "--masters bf16: masters have the type of the parameters that windows read, or fp32; take "
        "--precision bf16, too");
  }
  precision.masters = masters;
  return precision;
}

}  // namespace tessera::trainer
