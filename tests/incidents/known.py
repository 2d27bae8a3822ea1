"""What is known to fail: what Backtrail gets wrong today, and where shadow git must fail.

The second shows that the scenarios test something: they are exact, so a scenario that
stops failing there has stopped testing.
"""

from __future__ import annotations

from .catalogue import SCENARIOS

OPEN: dict[str, str] = {}
"""What Backtrail gets wrong today, and why."""

SHADOW_GIT_FAILS = frozenset(
    {
        # exact
        "crlf_under_gitattributes",
        "ident_is_not_expanded",
        "mode_600_comes_back",
        "mode_alone_comes_back",
        "mode_of_a_directory_comes_back",
        "all_twelve_bits_of_a_mode_come_back",
        "read_only_directory_comes_back",
        "empty_directory_comes_back",
        "ignored_file_comes_back",
        # others' work
        "human_edit_after_agent_edit_survives",
        "human_edit_between_agent_edits_survives",
        "human_edit_of_another_file_survives",
        "file_a_person_deleted_stays_deleted",
        "file_a_person_made_again_survives",
        "file_the_agent_moved_and_a_person_edited_survives",
        "files_the_agent_only_read_stay",
        "person_keeps_a_file_in_the_agents_directory",
        "pull_between_checkpoint_and_restore_survives",
        "undo_in_one_session_spares_the_other",
        "file_of_two_sessions_is_not_taken_from_either",
        "snapshot_of_one_worktree_is_not_restored_onto_another",
        "home_as_root_is_refused",
        "dirty_gitignore_never_deletes",
        "agents_gitignore_never_deletes",
        "session_in_a_folder_below_keeps_its_work",
        "two_stores_do_not_take_each_others_work",
        "restore_waits_for_a_call_under_way",
        "link_to_another_worktree_is_another_directory",
        "ignore_rule_of_an_agent_hides_nothing",
        # the user's git
        "branch_switched_since_is_said",
        "nested_repo_without_commit",
        "nested_repo_with_commits",
        "nested_repo_deleted_comes_back",
        "repository_that_was_only_moved_stays",
        "repository_that_was_emptied_stays",
        "repository_that_changed_places_comes_back",
        # bounds
        "left_out_file_that_changed_places_stays",
        "package_that_was_moved_out_stays",
        "huge_file_is_not_stored",
        "build_output_costs_nothing",
        "packages_that_no_rule_ignores_are_not_copied",
        "store_in_the_project_does_not_store_itself",
        # crashes
        "killed_in_the_middle_of_a_restore",
        "person_repairs_after_a_killed_restore",
        "killed_checkpoint_leaves_no_stale_lock",
        "killed_checkpoints_do_not_pile_up",
        "sessions_at_once_do_not_wedge_each_other",
        "lost_content_refuses_the_whole_restore",
        "zeroed_state_file_stops_nothing",
        # honesty
        "preview_names_only_the_agents_files",
        "conflict_waits_for_a_decision",
        "deletion_that_cannot_be_undone_is_said",
        "what_is_not_captured_is_said",
    }
)
"""It does the wrong thing there."""

SHADOW_GIT_CANNOT = frozenset(
    {
        "nearly_full_disk_stops_capture_and_says_so",
        "store_stays_within_its_budget",
        "deleted_session_gives_its_space_back",
        "collecting_needs_no_second_copy",
        "killed_restore_then_retry_keeps_the_original",
        "agent_killed_in_a_call_can_be_undone",
        "every_path_of_a_restore_is_reported",
        "restore_can_be_undone",
        "undo_and_redo_go_back_and_forth",
        "whole_restore_can_be_undone",
        "one_file_alone_comes_back",
        "merge_keeps_what_a_person_wrote_between_two_turns",
        "merge_twice_is_merge_once",
        "undo_of_a_small_restore_leaves_other_files_alone",
        "killed_call_of_another_session_blocks_nothing",
        "strangers_files_never_reach_git",
        *(scenario.name for scenario in SCENARIOS if scenario.topic == "the conversation"),
    }
)
"""It has no such ability there."""
