// SPDX-License-Identifier: GPL-2.0
/*
 * Has CBMC read the claims, which wasm2c has translated to C: gives them a memory, and numbers that
 * the prover imagines. scripts/prove adds a line with CLAIM() for each claim.
 */
#include "claims.h"

u64 __VERIFIER_nondet_u64(void);

static uint8_t bytes[1 << 17];
static w2c_claims instance;

bool wasm_rt_is_initialized(void)
{
	return true;
}

void wasm_rt_trap(wasm_rt_trap_t code)
{
	__CPROVER_assert(0, "nothing panics");
	__CPROVER_assume(0);
	__builtin_unreachable();
}

void wasm_rt_allocate_funcref_table(wasm_rt_funcref_table_t *table, uint32_t elements,
				    uint32_t most)
{
}

void wasm_rt_allocate_memory(wasm_rt_memory_t *memory, uint64_t pages, uint64_t most, bool is64)
{
	memory->data = bytes;
	memory->pages = sizeof(bytes) >> 16;
	memory->size = sizeof(bytes);
}

u64 w2c_env_imagine(struct w2c_env *env)
{
	u64 imagined = __VERIFIER_nondet_u64();

	return imagined;
}

/* The assertion has to fail: a claim that holds for nothing is no claim. */
#define CLAIM(name)                                                                                \
	void prove_##name(void)                                                                    \
	{                                                                                          \
		wasm2c_claims_instantiate(&instance, 0);                                           \
		__CPROVER_assert(!w2c_claims_##name(&instance), "nothing is claimed");             \
	}
