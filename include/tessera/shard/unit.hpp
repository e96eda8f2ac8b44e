// A unit: the parameters that are gathered, computed with and reduced together. Made by FullyShard::add.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "tessera/plan/layout.hpp"
#include "tessera/shard/parameter.hpp"

namespace tessera {

struct NamedParameter {
  std::string name;  // within the unit
  Parameter* parameter;
};

class Unit {
 public:
  Unit(std::string name, std::size_t index, std::span<const NamedParameter> parameters);
  Unit(const Unit&) = delete;
  Unit& operator=(const Unit&) = delete;

  const std::string& name() const { return name_; }
  std::size_t index() const { return index_; }
  std::span<Parameter* const> parameters() const { return parameters_; }

  // Where a parameter of this unit stands in parameters(). Throws UsageError for another unit's.
  std::size_t index_of(const Parameter& parameter) const;
  plan::UnitSpec spec() const;

 private:
  std::string name_;
  std::size_t index_;
  std::vector<Parameter*> parameters_;
};

}  // namespace tessera
