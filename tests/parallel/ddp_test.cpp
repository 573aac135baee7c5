// Runs the cases of ddp_cases under lockrun, on each backend.
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>

#include "tests/under_lockrun.h"

namespace lockstep {
namespace {

using testing::expect_case_succeeds;
using testing::under_lockrun;

/// Run one after the other in one job: a start of ranks costs more than most cases.
constexpr const char* kCases =
    " bucket_size_does_not_change_the_bits gradients_live_in_the_buckets eval_and_no_grad_arm_nothing"
    " different_modules_are_refused buffers_follow_rank_0"
    " every_kind_of_module any_arguments_and_results outputs_alone_begin_a_pass differences_are_named"
    " a_missing_gradient_is_named unused_parameters used_under_no_sync_only unused_beside_the_buckets"
    " a_gradient_from_outside_the_forward";
constexpr const char* kReducerCases =
    " buckets_are_rebuilt_in_ready_order ranks_agree_on_the_order reentrant_checkpoints"
    " an_exception_in_backward_on_one_rank an_exception_in_backward_on_all_ranks"
    " an_exception_in_forward shared_modules_and_tied_parameters several_forwards_and_one_backward "
    "two_backwards_after_one_forward"
    " frozen_and_freed_parameters several_dtypes sparse_gradients a_sparse_gradient_that_was_not_expected"
    " double_backward gradients_beside_the_buckets zero_grad_keeps_the_views a_forward_without_outputs"
    " eval_between_forward_and_backward ignored_parameters_and_options a_module_wrapped_again";
constexpr const char* kRobustnessCases =
    " odd_parameters a_wrapper_that_is_gone_before_backward a_wrapper_inside_a_wrapper"
    " one_model_after_another_in_one_backward parameters_that_are_replaced a_module_loaded_after_wrapping "
    "nested_no_sync"
    " backward_in_another_thread outputs_changed_in_place leaves_as_outputs gradients_are_computed_at_home"
    " gradients_that_have_no_home gradients_of_several_uses gradients_of_uses_of_two_kinds"
    " gradients_are_copied_to_a_home_of_other_strides an_operation_that_hands_out_no_gradient"
    " a_parameter_frozen_before_its_backward a_gradient_that_is_to_be_conjugated"
    " a_hook_changes_no_bit_of_odd_sizes an_exception_after_a_gradient_came_home";
constexpr const char* kHookCases =
    " the_allreduce_hook_changes_no_bit half_precision_hooks hooks_see_every_bucket_in_order"
    " hooks_of_several_stages when_hooks_are_refused the_noop_hook_leaves_gradients"
    " hooks_and_missing_gradients exceptions_with_hooks an_exception_in_a_hook_on_all_ranks "
    "an_exception_in_a_hook_at_the_end hooks_under_join"
    " powerSGD_of_a_low_rank_gradient_is_exact powerSGD_state_is_saved adasum_against_its_formula"
    " predivided_averages hooks_by_name model_averaging what_hooks_refuse backward_passes_per_step"
    " hooks_and_odd_gradients adasum_and_odd_gradients hooks_recover_from_what_is_not_finite"
    " powerSGD_errors_stay_with_their_parameters lossy_hooks_refuse_complex_gradients"
    " hierarchical_model_averaging post_local_sgd_optimizer logging_data_names_the_hook";
constexpr const char* kMixedPrecisionCases =
    " mixed_precision_against_low_copies mixed_precision_accumulates_in_full mixed_precision_outside_training"
    " mixed_precision_of_buffers_and_reduction mixed_precision_with_two_forwards_before_their_backwards";
constexpr const char* kJoinCases =
    " uneven_inputs two_models_and_accumulation early_termination_throws_on_all_ranks"
    " an_exception_under_join";
constexpr const char* kSyncBatchNormCases =
    " equals_batch_norm_over_all converted_model_under_ddp what_cannot_be_converted_is_named";

class DdpTest : public ::testing::TestWithParam<int> {
 protected:
  static void run(const char* cases) { expect_case_succeeds(GetParam(), "ddp_cases", cases); }
};

TEST_P(DdpTest, Cases) { run(kCases); }
TEST_P(DdpTest, Reducer) { run(kReducerCases); }
TEST_P(DdpTest, Robustness) { run(kRobustnessCases); }
TEST_P(DdpTest, Hooks) { run(kHookCases); }
TEST_P(DdpTest, MixedPrecision) { run(kMixedPrecisionCases); }
TEST_P(DdpTest, Join) { run(kJoinCases); }
TEST_P(DdpTest, SyncBatchNorm) { run(kSyncBatchNormCases); }

INSTANTIATE_TEST_SUITE_P(Ranks, DdpTest, ::testing::Values(2, 3, 4),
                         [](const auto& info) { return std::to_string(info.param); });

TEST(DdpGlooTest, Cases) {
  for (const char* cases :
       {kCases, kReducerCases, kRobustnessCases, kHookCases, kJoinCases, kSyncBatchNormCases}) {
    expect_case_succeeds(2, "ddp_cases", cases, "LOCKSTEP_BACKEND=gloo");
  }
}

TEST(DdpLargerTest, Cases) {
  expect_case_succeeds(
      2, "ddp_cases",
      "bucket_size_does_not_change_a_cnns_bits bucket_size_does_not_change_a_transformers_bits"
      " devices_are_checked");
}

TEST(DdpFailureTest, FreezingOnOneRankIsAnErrorOnAll) {
  expect_case_succeeds(3, "ddp_cases", "freezing_on_one_rank_is_an_error");
}

TEST(DdpFailureTest, AKilledRankEndsTheJobWithItsNameAndLeavesNothing) {
  const auto result = under_lockrun(3, LOCKSTEP_TEST_BIN_DIR "/ddp_cases one_rank_dies_in_training");
  EXPECT_EQ(result.exit_code, 128 + SIGKILL) << result.output;
  EXPECT_NE(result.output.find("rank 1"), std::string::npos) << result.output;
  EXPECT_NE(result.output.find("SIGKILL"), std::string::npos) << result.output;
  EXPECT_NE(std::system("pgrep -f 'ddp_cases one_rank_dies_in_training$' >/dev/null"), 0);
}

}  // namespace
}  // namespace lockstep
