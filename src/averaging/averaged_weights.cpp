// SPDX-License-Identifier: Apache-2.0
#include "saturate/averaging/averaged_weights.hpp"

#include "averager.hpp"

namespace saturate {

AveragedScope::AveragedScope(std::shared_ptr<detail::Averager> averager) {
  averager->open();
  averager_ = std::move(averager);
}

AveragedScope::~AveragedScope() {
  if (averager_) averager_->close();
}

AveragedWeights::AveragedWeights(std::shared_ptr<detail::Averager> averager) : averager_(std::move(averager)) {}

AveragedWeights::AveragedWeights(const AveragedWeights& other)
    : averager_(std::make_shared<detail::Averager>(*other.averager_)) {}

AveragedWeights& AveragedWeights::operator=(const AveragedWeights& other) {
  if (this != &other) averager_ = std::make_shared<detail::Averager>(*other.averager_);
  return *this;
}

void AveragedWeights::attach(torch::nn::Module& module, c10::Device device) { averager_->attach(module, device); }
void AveragedWeights::update(const at::Tensor& refused) { averager_->update(refused); }

AveragedScope AveragedWeights::scope() {
  if (averager_->attached() && updates() == 0) return AveragedScope();
  return AveragedScope(averager_);
}

AveragedScope AveragedWeights::evaluation_scope() {
  return averager_->evaluates() && averager_->attached() ? scope() : AveragedScope();
}

const at::Tensor& AveragedWeights::average(const std::string& name) const { return averager_->average(name); }
std::vector<std::string> AveragedWeights::names() const { return averager_->names(); }
int64_t AveragedWeights::steps() const { return averager_->steps(); }
int64_t AveragedWeights::updates() const { return averager_->rule().updates(averager_->steps()); }
AveragedState AveragedWeights::state() const { return averager_->state(); }
void AveragedWeights::load_state(const AveragedState& state) { averager_->load_state(state); }

}  // namespace saturate
